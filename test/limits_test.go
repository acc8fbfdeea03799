package test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// launcher returns a script that runs nodens after the shell command first.
func launcher(t *testing.T, first string) string {
	t.Helper()
	return lab.WriteScript(t, first+"\nexec "+buildPlain.Path(t)+` "$@"`)
}

// TestFewDescriptors runs nodens with 96 file descriptors. Clients that take all TCP
// connections do not stop lookups over UDP, and those of many names at once are
// answered.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	corefile := "bind " + localIP + "\n forward . 10.1.1.2\n"
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: launcher(t, "ulimit -n 96"), Netns: c.node,
		Corefile: "a. b. {\n " + corefile + "}\n. {\n " + corefile + admin + "}"})
	for range 150 {
		conn := c.pod.Dial(t, "tcp", localAddr)
		t.Cleanup(func() { _ = conn.Close() })
	}
	conn := &dns.Conn{Conn: c.pod.Dial(t, "udp", localAddr)}
	const n = 100 // at once; the receive queue of the client holds the replies
	for round := range 5 {
		for i := range n {
			if err := conn.WriteMsg(lab.Query(fmt.Sprintf("n%d-%d.example.", round, i), dns.TypeA)); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			r, err := conn.ReadMsg()
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Answer) != 1 {
				t.Errorf("%s: %s", r.Question[0].Name, dns.RcodeToString[r.Rcode])
			}
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil || len(files) > 90 {
		t.Errorf("%d descriptors are open, of 96: %v", len(files), err)
	}
	c.node.Scrape(t, metrics) // has a descriptor left
	if strings.Contains(d.Err.Text(), "too many open files") {
		t.Errorf("descriptors ran out:\n%s", d.Err.Text())
	}
}

// TestLimitLowered runs nodens with a limit that does not fit its memory limit: it
// serves with a lower one, and logs and exports that. check and status report it.
func TestLimitLowered(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	group := lab.NewMemory(t)
	group.Limit(t, 128<<20)
	inside := launcher(t, "echo $$ > "+group.Dir+"/cgroup.procs")
	args := []string{"-max-misses", "100000"}
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: inside, Netns: c.node, Args: args,
		Corefile: ". {\n bind " + localIP + "\n forward . 10.1.1.2\n" + admin + "}"})
	const reason = `-max-misses 100000 needs 390 MiB \(4 KiB each\); the memory limit 128 MiB leaves \d+ MiB after`
	d.Err.WaitFor(t, 0, `level=WARN msg="a limit is lowered.*limit=max-misses used=\d+ error="`+reason)
	c.node.WaitForMetric(t, metrics, 1, "nodens_limit_clamped", "limit=max_misses")
	if r := c.pod.Ask(t, "udp", localAddr, lab.Query("www.example.", dns.TypeA)); len(r.Answer) != 1 {
		t.Errorf("%v", r)
	}
	flags := append([]string{"-conf", d.Conf, "-basecorefile="}, args...)
	_, errs, status := lab.Command{Netns: c.node, Args: append([]string{inside, "check"}, flags...)}.Output(t)
	if status != 1 || !strings.HasPrefix(errs, "-max-misses 100000 needs 390 MiB (4 KiB each); the memory limit 128 MiB leaves ") {
		t.Errorf("check: status %d, %s", status, errs)
	}
	out, _, _ := lab.Command{Netns: c.node, Args: append([]string{inside, "status"}, flags...)}.Output(t)
	for _, want := range []string{"limits\tmemory 128 MiB, heap ", ", cache 64 MiB\n", " misses, ", "note\t-max-misses does not fit"} {
		if !strings.Contains(out, want) {
			t.Errorf("status prints no %q:\n%s", want, out)
		}
	}
}
