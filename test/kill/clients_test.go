package kill

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The load of each client.
const (
	rate    = 200 // lookups of A and AAAA per second
	workers = 32  // concurrent lookups, at most
)

// client is a pod's process that looks up names all the time.
type client struct {
	*lab.Process
	name string
}

// startClients starts one client per pod.
func (n *node) startClients(t *testing.T) []*client {
	t.Helper()
	lab.NeedTools(t, "gcc", "musl-gcc", "unshare")
	var clients []*client
	for _, c := range []struct {
		name    string
		program *lab.Program // Go's resolver if nil
		options string
	}{
		{"musl", muslClient, ""},
		{"glibc", glibcClient, ""},
		{"go", nil, ""},
		{"tcp", nil, "options use-vc\n"},
	} {
		p := n.addPod(t, c.name)
		cmd := lab.Command{Netns: p.netns, Cgroup: p.cgroup, Binds: lab.Etc(t, "nameserver "+vip+"\n"+c.options)}
		args := []string{c.name + ".example", fmt.Sprint(rate), fmt.Sprint(workers)}
		if n.popular {
			args = append(args, "popular.example")
		}
		if c.program == nil {
			cmd.Args, cmd.Env = lab.GoClient(t, args...)
		} else {
			cmd.Args = append([]string{c.program.Path(t)}, args...)
		}
		clients = append(clients, &client{cmd.Start(t), c.name})
	}
	for _, c := range clients {
		c.Out.WaitFor(t, 0, `^started$`)
	}
	return clients
}

// result is what a client reports about a round.
type result struct {
	count, failed int
	longest       time.Duration
	failures      []string
}

// endRound waits until the lookups in progress in every client have ended.
func endRound(t *testing.T, clients []*client, marks []int) []result {
	t.Helper()
	for _, c := range clients {
		c.Signal(t, syscall.SIGUSR1)
	}
	var results []result
	for i, c := range clients {
		var r result
		var ms int
		line := c.Out.WaitFor(t, marks[i], `^round `)
		if _, err := fmt.Sscanf(line, "round %d %d %d", &r.count, &r.failed, &ms); err != nil {
			t.Fatalf("%s: %q: %v", c.name, line, err)
		}
		r.longest = time.Duration(ms) * time.Millisecond
		for _, l := range strings.Split(c.Out.Text(), "\n")[marks[i]:] {
			if strings.HasPrefix(l, "failed ") {
				r.failures = append(r.failures, c.name+": "+l)
			}
		}
		results = append(results, r)
	}
	return results
}

func marksOf(clients []*client) []int {
	var marks []int
	for _, c := range clients {
		marks = append(marks, c.Out.Mark())
	}
	return marks
}
