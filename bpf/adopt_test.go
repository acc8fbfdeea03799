package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// load queries with all kinds of clients from one pod until it is stopped.
type load struct {
	stop   chan struct{}
	done   sync.WaitGroup
	mu     sync.Mutex
	count  int
	failed []string
	rounds []chan struct{} // one per agent; the agent receives from it between lookups
}

func (p *pod) startLoad(t *testing.T, want map[string]bool) *load {
	l := &load{stop: make(chan struct{})}
	for _, s := range shapes() {
		a := startAgent(t, p.ns, p.cgroup)
		between := make(chan struct{})
		l.rounds = append(l.rounds, between)
		l.done.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-between:
				default:
				}
				l.record(a.lookup(s, answerWait), want)
			}
		})
	}
	return l
}

// round waits until all lookups in progress have ended.
func (l *load) round() {
	for _, between := range l.rounds {
		between <- struct{}{}
	}
}

func (l *load) record(got string, want map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	if !want[got] {
		l.failed = append(l.failed, got)
	}
}

// finish stops the load and returns the number of lookups. None may have failed.
func (l *load) finish(t *testing.T) int {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	if n := len(l.failed); n > 0 {
		t.Errorf("%d of %d lookups failed, the first one: %s", n, l.count, l.failed[0])
	}
	return l.count
}

// lookup returns the answer, or the operation that failed within wait. It closes its
// socket, because a connecting socket would continue to send. Any goroutine may call
// it.
func (a *agent) lookup(s shape, wait time.Duration) string {
	steps := []request{{Op: "socket", Socket: "l", Network: s.network, Wait: wait}}
	if s.connected {
		steps = append(steps,
			request{Op: "connect", Socket: "l", Addr: s.seen()},
			request{Op: "write", Socket: "l", Payload: "q"})
	} else {
		steps = append(steps, request{Op: "send", Socket: "l", Addr: s.seen(), Payload: "q"})
	}
	steps = append(steps, request{Op: "recv", Socket: "l"})
	answer := ""
	for _, step := range steps {
		resp := a.roundTrip(step)
		if resp.Errno != 0 || resp.Err != "" {
			answer = fmt.Sprintf("%s: %s: %v %s", s.name, step.Op, resp.Errno, resp.Err)
			break
		}
		if answer = resp.Payload; step.Op == "recv" && resp.Addr != s.seen() && s.network[:3] == "udp" {
			answer = fmt.Sprintf("%s: reply from %v", s.name, resp.Addr)
		}
	}
	a.roundTrip(request{Op: "close", Socket: "l"})
	return answer
}

// roundTrip makes a request. Errors of its transport are in the response too.
func (a *agent) roundTrip(req request) (resp response) {
	if err := a.in.Encode(req); err != nil {
		return response{Err: err.Error()}
	}
	if err := a.out.Decode(&resp); err != nil {
		return response{Err: err.Error()}
	}
	return resp
}

func only(answers ...string) map[string]bool {
	set := map[string]bool{}
	for _, a := range answers {
		set[a+":q"] = true
	}
	return set
}

// 100 swaps of all eight programs during lookups by every kind of client.
func TestAdoptionUnderLoad(t *testing.T) {
	p := newPod(t)
	first := open(t, p.config(t))
	check(t, first.Attach())
	check(t, first.Alive())
	l := p.startLoad(t, only("target"))
	prev := first
	for range 10 {
		next := openBeside(t, p.config(t))
		for range 10 {
			check(t, next.Attach())
			l.round()
		}
		check(t, next.Alive())
		check(t, prev.Close())
		prev = next
	}
	asked := l.finish(t)
	checkAttached(t, p.kubepods, 1)
	t.Logf("%d lookups during 100 × %d swaps", asked, len(hooks()))
}

// The daemon is stopped normally and started again ten times. It withdraws, answers
// the queries in progress, and ends.
func TestRestartsUnderLoad(t *testing.T) {
	p, cfg := newServedPod(t)
	d := startDaemon(t, nil, p.ns, cfg)
	l := p.startLoad(t, only("daemon", "core"))
	for range 10 {
		l.round()
		d.withdraw(t)
		l.round()
		d.stop(t)
		d = startDaemon(t, nil, p.ns, cfg)
	}
	t.Logf("%d lookups during 10 restarts", l.finish(t))
	p.askAll(t, "daemon")
}

// A socket that was redirected before the swap still sees the VIP.
func TestAdoptedSocketState(t *testing.T) {
	p := newPod(t)
	old := open(t, p.config(t))
	check(t, old.Attach())
	check(t, old.Alive())
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	p.must(t, request{Op: "send", Socket: "u", Addr: ap(vip4), Payload: "q"})
	next := openBeside(t, p.config(t))
	check(t, next.Attach())
	check(t, old.Close())
	receive(t, p, vip4)
}

// A successor with another cgroup moves the programs there.
func TestMovedCgroup(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Cgroup = lab.NewKubepods(t)
	old := open(t, cfg)
	check(t, old.Attach())
	next := openBeside(t, p.config(t))
	check(t, next.Attach())
	check(t, next.Alive())
	p.askAll(t, "target")
	checkAttached(t, cfg.Cgroup, 0)
}

// While a predecessor is alive, its services change only when the successor is alive
// too.
func TestServicesChangeWhenAlive(t *testing.T) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "10.0.0.6/32")
	serve(t, p.ns, "10.0.0.6:10053", "next")
	udp4 := shapes()[0]
	old := open(t, p.config(t))
	check(t, old.Attach())
	check(t, old.Alive())
	cfg := p.config(t)
	cfg.Services = []Service{{VIP: ap(vip4), Target: ap("10.0.0.6:10053")}}
	next := openBeside(t, cfg)
	check(t, next.Attach())
	p.ask(t, udp4, "target")
	check(t, next.Alive())
	p.ask(t, udp4, "next")
	check(t, next.Withdraw())
	p.ask(t, udp4, "core") // the fallback of the predecessor
	p.must(t, request{Op: "socket", Socket: "6", Network: "udp6"})
	if got := p.call(t, request{Op: "send", Socket: "6", Addr: ap(vip6), Payload: "q"}); got.Errno == 0 {
		t.Error("a service that the successor lacks is still redirected")
	}
}

func countAttached(t testing.TB, dir string, h hook) uint32 {
	t.Helper()
	_, n, err := queryAttached(dir, uint32(h.attach))
	check(t, err)
	return n
}

// checkAttached checks how often the program of each hook is attached to a cgroup.
func checkAttached(t testing.TB, dir string, want uint32) {
	t.Helper()
	for _, h := range hooks() {
		if n := countAttached(t, dir, h); n != want {
			t.Errorf("%s is attached to %s %d times, want %d", h.name, dir, n, want)
		}
	}
}

func checkNames(t testing.TB, dir string, want int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != want {
		t.Errorf("%s has %d entries, want %d: %v", dir, len(entries), want, entries)
	}
}

// Teardown of a mount point, and of a directory that has other pins.
func TestTeardownLeavesOthersAlone(t *testing.T) {
	lab.NeedBPF(t)
	dir := filepath.Join(lab.BPFFS, t.Name())
	other := filepath.Join(dir, "cilium")
	check(t, os.MkdirAll(other, 0o700))
	defer os.RemoveAll(dir)
	check(t, Teardown(dir))
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	check(t, Teardown(lab.BPFFS))
	check(t, Teardown(filepath.Join(t.TempDir(), "missing")))
}
