package drills

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const hangup = syscall.SIGHUP

// TestDiskFull runs with nowhere to write to, as when the node's disk is full:
// neither the start-up line nor logs nor the query log keep it from answering.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "sh")
	n := lab.NewNetns(t, "node", addresses...)
	lab.StartUpstream(t, n, upstream+":53", func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name == "fails.example.org." {
			return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		}
		return answer(q)
	})
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"),
		". {\n errors\n log\n bind 127.0.0.1\n cache 300\n prometheus "+metrics+"\n forward . "+upstream+"\n}\n")
	p := lab.Command{Netns: n, Args: []string{"sh", "-c", `exec "$0" "$@" >/dev/full 2>/dev/full`, nodens.Path(t), "-conf", conf}}.Start(t)
	awaitAnswer(t, n, p)
	for i := range 200 {
		resolves(t, n, fmt.Sprintf("n%d.example.org.", i))
		n.Ask(t, "udp", server, lab.Query("fails.example.org.", dns.TypeA))
	}
	p.Signal(t, syscall.SIGTERM)
	if status := p.Wait(t); status != 0 {
		t.Errorf("ended with status %d", status)
	}
}

// awaitAnswer asks until the server is there. There is nothing else to wait
// for: what it says is lost.
func awaitAnswer(t *testing.T, n *lab.Netns, p *lab.Process) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.Patience)
	for {
		c := n.Dial(t, "udp", server)
		if r, err := lab.AskOn(c, lab.Query("start.example.org.", dns.TypeA)); err == nil && r.Rcode == dns.RcodeSuccess {
			return
		}
		select {
		case <-tick.C:
		case <-p.Done():
			t.Fatalf("ended with status %d", p.Wait(t))
		case <-late:
			t.Fatal("does not answer")
		}
	}
}

// TestOpenFiles runs with 64 descriptors, asks for more names at once than
// that and holds connections open: what is cached is answered all the while,
// what is not gets SERVFAIL at worst, and afterwards all is well.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "prlimit")
	n := lab.NewNetns(t, "node", addresses...)
	release := make(chan struct{})
	lab.StartUpstream(t, n, upstream+":53", func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name != "popular.example.org." {
			select {
			case <-release:
			case <-t.Context().Done():
			}
		}
		return answer(q)
	})
	d := start(t, n, corefile(upstream, ""))
	resolves(t, n, "popular.example.org.")
	limitFiles(t, d, 64)

	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range 300 {
		wg.Go(func() {
			r, err := n.TryAsk(t, "udp", server, lab.Query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			switch {
			case err != nil:
				t.Errorf("n%d: no reply: %v", i, err)
			case r.Rcode == dns.RcodeSuccess:
				answered.Add(1)
			case r.Rcode != dns.RcodeServerFailure:
				t.Errorf("n%d: %s", i, dns.RcodeToString[r.Rcode])
			}
		})
	}
	var conns []net.Conn
	for range 100 {
		conns = append(conns, n.Dial(t, "tcp", server))
	}
	for range 100 {
		resolves(t, n, "popular.example.org.")
	}
	close(release)
	wg.Wait()
	t.Logf("%d of 300 were answered", answered.Load())
	for _, c := range conns {
		_ = c.Close()
	}
	awaitTCP(t, n)
	resolves(t, n, "after.example.org.")
}

// limitFiles lowers the number of descriptors that a running process may have.
func limitFiles(t *testing.T, d *lab.Daemon, files int) {
	t.Helper()
	_, stderr, status := lab.Command{Netns: d.Netns, Args: []string{
		"prlimit", "--pid", fmt.Sprint(d.PID()), fmt.Sprintf("--nofile=%d:%d", files, files),
	}}.Output(t)
	if status != 0 {
		t.Fatalf("prlimit: %s", stderr)
	}
}

// awaitTCP asks over TCP until there is an answer: the listener may be pausing
// because it had no descriptor left.
func awaitTCP(t *testing.T, n *lab.Netns) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.Patience)
	for {
		r, err := n.TryAsk(t, "tcp", server, lab.Query("popular.example.org.", dns.TypeA))
		if err == nil && r.Rcode == dns.RcodeSuccess {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("no answer over TCP: %v", err)
		}
	}
}

// TestFlood asks for names that are never asked again, as fast as they are
// taken: the cache stays within its budget and a popular name is answered all
// the while.
func TestFlood(t *testing.T) {
	t.Parallel()
	const (
		budget = 1 << 20
		names  = 50_000
		conns  = 32
	)
	n := lab.NewNetns(t, "node", addresses...)
	lab.StartUpstream(t, n, upstream+":53", answer)
	start(t, n, corefile(upstream, ""), fmt.Sprintf("-cache-size=%d", budget))
	resolves(t, n, "popular.example.org.")
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	for range conns {
		c := n.Dial(t, "udp", server)
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > names {
					return
				}
				r, err := lab.AskOn(c, lab.Query(fmt.Sprintf("n%d.flood.example.org.", i), dns.TypeA))
				if err != nil || r.Rcode != dns.RcodeSuccess {
					failed.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	worst, asked := 0.0, 0
	for flooding := true; flooding; asked++ {
		select {
		case <-done:
			flooding = false
		default:
		}
		resolves(t, n, "popular.example.org.")
		if asked%50 == 0 || !flooding {
			bytes, ok := n.Scrape(t, metrics).Sum("nodens_cache_bytes")
			if !ok {
				t.Fatal("no nodens_cache_bytes")
			}
			worst = max(worst, bytes)
		}
	}
	t.Logf("%d failed of %d; popular asked %d times; at most %.0f octets of %d", failed.Load(), names, asked, worst, budget)
	if failed.Load() > names/100 { // upstream, which is of this machine, may be late
		t.Errorf("%d look-ups of the flood failed", failed.Load())
	}
	if worst > budget*1.05 {
		t.Errorf("the cache took %.0f octets, its budget is %d", worst, budget)
	}
	if worst < budget/2 {
		t.Errorf("the flood filled %.0f octets of %d only: it proves nothing", worst, budget)
	}
}
