package cilium

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// client is a pod's process that looks up new names and one popular name all the time.
type client struct {
	*lab.Process
	*pod
	mark int
}

// startClients starts a client with each resolver, each in a pod. Two use the local
// address, one the ClusterIP.
func (n *node) startClients(t *testing.T) (clients []*client) {
	t.Helper()
	lab.NeedTools(t, "gcc", "musl-gcc")
	for _, c := range []struct {
		name    string
		program *lab.Program // Go's resolver if nil
		server  string
	}{{"musl", muslClient, vip}, {"glibc", glibcClient, vip}, {"go", nil, vip}, {"glibc-clusterip", glibcClient, clusterDNS}} {
		p := n.addPod(t, c.name, "app: client")
		cmd := lab.Command{Netns: p.Netns, Cgroup: p.cgroup, Binds: lab.Etc(t, "nameserver "+c.server+"\n")}
		args := []string{c.name + ".example", "50", "16", "popular.example"}
		if c.program == nil {
			cmd.Args, cmd.Env = lab.GoClient(t, args...)
		} else {
			cmd.Args = append([]string{c.program.Path(t)}, args...)
		}
		clients = append(clients, &client{cmd.Start(t), p, 0})
	}
	for _, c := range clients {
		c.Out.WaitFor(t, 0, `^started$`)
	}
	return clients
}

// endRound waits for the lookups in progress and reports those since the last round.
func endRound(t *testing.T, when string, clients []*client) {
	t.Helper()
	for _, c := range clients {
		c.mark = c.Out.Mark()
		c.Signal(t, syscall.SIGUSR1)
	}
	for _, c := range clients {
		var count, failed, ms int
		line := c.Out.WaitFor(t, c.mark, `^round `)
		if _, err := fmt.Sscanf(line, "round %d %d %d", &count, &failed, &ms); err != nil {
			t.Fatalf("%s: %q: %v", c.name, line, err)
		}
		t.Logf("%-24s %-16s %d of %d lookups failed, longest %.1f s", when, c.name, failed, count, float64(ms)/1000)
		if failed > 0 || count == 0 {
			t.Errorf("%s, %s: %d of %d lookups failed", when, c.name, failed, count)
		}
	}
}
