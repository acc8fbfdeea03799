package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestMemoryRunsOut lowers the memory limit of the daemon's cgroup to little more
// than its usage: the cache shrinks, and the daemon stays up and answers.
func TestMemoryRunsOut(t *testing.T) {
	t.Parallel()
	group := lab.NewMemory(t)
	group.Limit(t, 1<<30)
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 3600 IN TXT "+strings.Repeat("x", 200))
	})
	// The cgroup must exist before the daemon starts, so that it counts all
	// memory.
	script := launcher(t, "echo $$ > "+group.Dir+"/cgroup.procs")
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: script, Netns: c.node, Args: []string{"-cache-size", "64M"},
		Corefile: ". {\n cache 3600 {\n success 100000\n}\n bind " + localIP + "\n forward . " + ip + "\n" + admin + "}"})
	conn := &dns.Conn{Conn: c.pod.Dial(t, "tcp", localAddr)}
	for from := 0; from < 4000; from += 50 {
		for i := range 50 {
			if err := conn.WriteMsg(lab.Query(fmt.Sprintf("n%d.example.", from+i), dns.TypeTXT)); err != nil {
				t.Fatal(err)
			}
		}
		for range 50 {
			if _, err := conn.ReadMsg(); err != nil {
				t.Fatal(err)
			}
		}
	}
	full, _ := c.node.Scrape(t, metrics).Sum("nodens_cache_bytes")
	// Go also frees memory, so a first limit may be too high to have an effect.
	d.Err.WaitForRetrying(t, 0, `memory is nearly used up: the cache is made smaller`, 3*time.Second, func() {
		group.Limit(t, (group.Used(t)-group.IdleFiles(t))/100*107)
	})
	m := c.node.Scrape(t, metrics)
	left, _ := m.Sum("nodens_cache_bytes")
	budget, _ := m.Sum("nodens_cache_budget_bytes")
	if left > full*0.8 || left > budget || left == 0 {
		t.Errorf("the cache has %.0f bytes of %.0f, the budget is %.0f", left, full, budget)
	}
	if r := c.pod.Ask(t, "udp", localAddr, lab.Query("another.example.", dns.TypeTXT)); len(r.Answer) != 1 {
		t.Errorf("afterwards: %v", r)
	}
	group.Limit(t, 1<<30) // the end is not part of the test
}
