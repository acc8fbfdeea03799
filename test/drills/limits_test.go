package drills

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const hangup = syscall.SIGHUP

// TestDiskFull runs with standard output and error on a full disk: nodens answers
// although it can write neither its first line nor logs nor the query log.
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
	waitForAnswer(t, n, p)
	for i := range 200 {
		resolves(t, n, fmt.Sprintf("n%d.example.org.", i))
		n.Ask(t, "udp", server, lab.Query("fails.example.org.", dns.TypeA))
	}
	p.Signal(t, syscall.SIGTERM)
	if status := p.Wait(t); status != 0 {
		t.Errorf("ended with status %d", status)
	}
}

// waitForAnswer queries until the server answers. Its output is lost, so there is no
// line to wait for.
func waitForAnswer(t *testing.T, n *lab.Netns, p *lab.Process) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(lab.QueryTimeout)
	for {
		c := n.Dial(t, "udp", server)
		if r, err := lab.AskOn(c, lab.Query("start.example.org.", dns.TypeA)); err == nil && r.Rcode == dns.RcodeSuccess {
			return
		}
		select {
		case <-tick.C:
		case <-p.Done():
			t.Fatalf("ended with status %d", p.Wait(t))
		case <-deadline:
			t.Fatal("does not answer")
		}
	}
}

// TestOpenFiles runs with 64 file descriptors, more concurrent misses than that, and
// open connections: hits are answered all the time, misses get SERVFAIL at worst,
// and afterwards everything resolves.
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
	t.Logf("%d of 300 misses were answered", answered.Load())
	for _, c := range conns {
		_ = c.Close()
	}
	waitForTCP(t, n)
	resolves(t, n, "after.example.org.")
}

// TestIdleConnections takes all file descriptors by idle TCP connections: nodens
// closes those that are idle for longest and answers over new ones at once.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "prlimit")
	n := lab.NewNetns(t, "node", addresses...)
	lab.StartUpstream(t, n, upstream+":53", answer)
	d := start(t, n, corefile(upstream, ""))
	resolves(t, n, "popular.example.org.")
	limitFiles(t, d, 96)
	var idle []net.Conn
	for range 200 {
		idle = append(idle, n.Dial(t, "tcp", server))
	}
	for _, network := range []string{"tcp", "udp", "tcp"} {
		if r, err := n.TryAsk(t, network, server, lab.Query("popular.example.org.", dns.TypeA)); err != nil || r.Rcode != dns.RcodeSuccess {
			t.Errorf("over %s: %v %v", network, r, err)
		}
	}
	_ = idle[0].SetReadDeadline(time.Now().Add(lab.QueryTimeout))
	if _, err := idle[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the first connection: %v, want it closed", err)
	}
	if lines := strings.Count(d.Err.Text(), "accepting TCP connections failed"); lines != 1 {
		t.Errorf("%d lines about accept", lines)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	m := n.Scrape(t, metrics)
	if evicted, _ := m.Sum("nodens_server_tcp_evicted_total"); evicted < 100 {
		t.Errorf("%v connections closed", evicted)
	}
	if rejected, _ := m.Sum("nodens_server_tcp_rejected_total"); rejected > 0 {
		t.Errorf("%v connections rejected", rejected)
	}
}

// limitFiles limits the number of file descriptors of a running process.
func limitFiles(t *testing.T, d *lab.Daemon, files int) {
	t.Helper()
	_, stderr, status := lab.Command{Netns: d.Netns, Args: []string{
		"prlimit", "--pid", fmt.Sprint(d.PID()), fmt.Sprintf("--nofile=%d:%d", files, files),
	}}.Output(t)
	if status != 0 {
		t.Fatalf("prlimit: %s", stderr)
	}
}

// waitForTCP queries over TCP until it gets an answer: a listener that ran out of file
// descriptors pauses.
func waitForTCP(t *testing.T, n *lab.Netns) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(lab.QueryTimeout)
	for {
		r, err := n.TryAsk(t, "tcp", server, lab.Query("popular.example.org.", dns.TypeA))
		if err == nil && r.Rcode == dns.RcodeSuccess {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no answer over TCP: %v", err)
		}
	}
}

// TestFlood queries for new names as fast as nodens answers: the cache stays within
// its budget, and a popular name is answered all the time.
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
	largest, queries := 0.0, 0
	for flooding := true; flooding; queries++ {
		select {
		case <-done:
			flooding = false
		default:
		}
		resolves(t, n, "popular.example.org.")
		if queries%50 == 0 || !flooding {
			bytes, ok := n.Scrape(t, metrics).Sum("nodens_cache_bytes")
			if !ok {
				t.Fatal("no nodens_cache_bytes")
			}
			largest = max(largest, bytes)
		}
	}
	t.Logf("%d of %d lookups failed; %d queries for the popular name; at most %.0f of %d bytes", failed.Load(), names, queries, largest, budget)
	if failed.Load() > names/100 { // upstream runs on the same machine and may be slow
		t.Errorf("%d lookups of the flood failed", failed.Load())
	}
	if largest > budget*1.05 {
		t.Errorf("the cache took %.0f bytes, its budget is %d", largest, budget)
	}
	if largest < budget/2 {
		t.Errorf("the flood filled only %.0f of %d bytes: this test proves nothing", largest, budget)
	}
}
