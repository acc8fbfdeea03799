package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// TestMemoryRunsOut lowers the memory limit of the daemon's cgroup to a little
// above what is used: the cache gives way, and the daemon lives and answers.
func TestMemoryRunsOut(t *testing.T) {
	t.Parallel()
	dir, limit, usage := memoryCgroup(t)
	set := func(n int64) {
		err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.FormatInt(n, 10)), 0)
		// EBUSY: more than that has been taken meanwhile.
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
	}
	set(1 << 30)
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 3600 IN TXT "+strings.Repeat("x", 200))
	})
	// It has to be there before it starts: what is taken then counts, too.
	script := lab.WriteFile(t, filepath.Join(t.TempDir(), "inside"), "#!/bin/sh\necho $$ > "+dir+"/cgroup.procs\nexec "+buildPlain.Path(t)+" \"$@\"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
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
	// Go gives memory back meanwhile, so one limit may be too far above.
	d.Err.AwaitPushing(t, 0, `memory is nearly used up: the cache gives way`, 3*time.Second, func() {
		set((readNumber(t, filepath.Join(dir, usage)) - idleFiles(t, dir)) / 100 * 107)
	})
	m := c.node.Scrape(t, metrics)
	left, _ := m.Sum("nodens_cache_bytes")
	budget, _ := m.Sum("nodens_cache_budget_bytes")
	if left > full*0.8 || left > budget || left == 0 {
		t.Errorf("%.0f of %.0f bytes are left, the budget is %.0f", left, full, budget)
	}
	if r := c.pod.Ask(t, "udp", localAddr, lab.Query("another.example.", dns.TypeTXT)); len(r.Answer) != 1 {
		t.Errorf("afterwards: %v", r)
	}
	set(1 << 30) // the end is not what is tested
}

// memoryCgroup makes a cgroup with a memory controller, v1 or v2, and returns
// the names of its files.
func memoryCgroup(t *testing.T) (dir, limit, usage string) {
	t.Helper()
	lab.NeedRoot(t)
	name := fmt.Sprintf("nodens-memory-%d", os.Getpid())
	if dir, ok := lab.FindMount(t, "cgroup", "memory"); ok {
		return lab.MakeCgroup(t, filepath.Join(dir, name)), "memory.limit_in_bytes", "memory.usage_in_bytes"
	}
	if dir, ok := lab.FindMount(t, "cgroup2", ""); ok && os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0) == nil {
		return lab.MakeCgroup(t, filepath.Join(dir, name)), "memory.max", "memory.current"
	}
	lab.Skip(t, "no cgroups with a memory controller")
	return "", "", ""
}

func readNumber(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// idleFiles is what the kernel can have back from the cgroup by dropping files.
func idleFiles(t *testing.T, dir string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	var idle int64
	for line := range strings.Lines(string(text)) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "total_inactive_file" || name == "inactive_file" {
			idle, _ = strconv.ParseInt(n, 10, 64)
		}
	}
	return idle
}
