package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestInflightJoin(t *testing.T) {
	var f inflight
	start := time.Now()
	a, b, other := newAnswers(), newAnswers(), newAnswers()
	x, err := f.join("key", a, start, none)
	if x == nil || err != nil || x.check {
		t.Fatalf("first waiter: %+v, %v", x, err)
	}
	if y, err := f.join("key", b, start, none); y != nil || err != nil {
		t.Error("second waiter is first, too")
	}
	if y, _ := f.join("other", other, start, none); y == nil {
		t.Error("another key is not independent")
	}
	waiting, _ := f.end(x, start.Add(time.Second))
	if len(waiting) != 2 || waiting[0] != waiter(a) || waiting[1] != waiter(b) {
		t.Errorf("waiting: %v", waiting)
	}
	for _, tt := range []struct {
		since time.Duration
		raced bool
	}{{0, true}, {time.Second, true}, {2 * time.Second, false}} {
		x, _ := f.join("key", a, start.Add(tt.since), none)
		if x == nil || x.check != tt.raced {
			t.Fatalf("joined for a lookup after %v: %+v", tt.since, x)
		}
		f.end(x, start) // an earlier end does not hide a later one
	}
}

func TestInflightLeave(t *testing.T) {
	var f inflight
	a, b := newAnswers(), newAnswers()
	if f.leave("key", a, nil) {
		t.Error("left a key that is not in flight")
	}
	x, _ := f.join("key", a, time.Time{}, none)
	if f.leave("key", b, nil) {
		t.Error("left without having joined")
	}
	charged := 0
	charge := func(*exchange) { charged++ }
	if !f.leave("key", a, charge) || f.leave("key", a, charge) || charged != 1 {
		t.Error("not left and charged exactly once")
	}
	if y, _ := f.join("key", b, time.Time{}, none); y != nil {
		t.Error("the exchange ended with its last waiter")
	}
	if waiting, charged := f.end(x, time.Time{}); len(waiting) != 1 || waiting[0] != waiter(b) || !charged {
		t.Errorf("waiting: %v, charged %v", waiting, charged)
	}
}

// TestInflightAbandon: the exchange is cancelled with the last waiter that
// leaves, and a late end does not touch its successor.
func TestInflightAbandon(t *testing.T) {
	var f inflight
	a, b, c := newAnswers(), newAnswers(), newAnswers()
	x, _ := f.join("key", a, time.Time{}, none)
	f.join("key", b, time.Time{}, none)
	f.join("key", c, time.Time{}, none)
	charged, cancelled := 0, 0
	charge := func(*exchange) { charged++ }
	cancel := func() { cancelled++ }
	x.cancel.Store(&cancel)
	for _, w := range []waiter{a, c} {
		if left, y := f.abandon("key", w, charge); !left || y != nil || cancelled != 0 {
			t.Errorf("not the last one: left %v, cancelled %v", left, y != nil)
		}
		if !x.charged || charged != 1 {
			t.Errorf("an exchange that continues without its client is charged %d times", charged)
		}
	}
	if left, y := f.abandon("key", b, charge); !left || y != x || cancelled != 1 || charged != 1 {
		t.Errorf("last: left %v, cancelled %v, %d times", left, y == x, cancelled)
	}
	next, _ := f.join("key", a, time.Time{}, none)
	if next == nil {
		t.Fatal("a cancelled exchange is in flight")
	}
	if waiting, _ := f.end(x, time.Time{}); waiting != nil {
		t.Errorf("a cancelled exchange delivered to %v", waiting)
	}
	if waiting, _ := f.end(next, time.Time{}); len(waiting) != 1 {
		t.Errorf("waiting: %v", waiting)
	}
}

// TestInflightAbandonUnstoppable: an exchange that cannot be cancelled continues and is
// charged.
func TestInflightAbandonUnstoppable(t *testing.T) {
	var f inflight
	a, charged := newAnswers(), 0
	x, _ := f.join("key", a, time.Time{}, none)
	if left, y := f.abandon("key", a, func(*exchange) { charged++ }); !left || y != nil || charged != 1 {
		t.Errorf("left %v, cancelled %v, charged %d times", left, y != nil, charged)
	}
	if _, charged := f.end(x, time.Time{}); !charged {
		t.Error("the exchange has no slot")
	}
}

// none completes no exchange.
func none(*exchange) error { return nil }

// answers waits for one answer.
type answers struct {
	got    chan answer
	queued int
}

func newAnswers() *answers { return &answers{got: make(chan answer, 1)} }

func (c *answers) deliver(a answer) { c.got <- a }

func (c *answers) place() *int { return &c.queued }

// TestInflightConcurrentUse is for the race detector. Each waiter gets its
// answer exactly once, or leaves.
func TestInflightConcurrentUse(t *testing.T) {
	var f inflight
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				key, w := fmt.Sprint(i%3), newAnswers()
				if x, _ := f.join(key, w, time.Now(), none); x != nil {
					waiting, _ := f.end(x, time.Now())
					for _, o := range waiting {
						o.deliver(answer{})
					}
				} else if g == 0 && f.leave(key, w, nil) {
					continue
				}
				<-w.got
			}
		})
	}
	wg.Wait()
	if len(f.byKey) != 0 {
		t.Errorf("%d exchanges left", len(f.byKey))
	}
}

// waiters counts the waiters for any answer.
func (f *inflight) waiters() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.byKey {
		n += len(x.waiting)
	}
	return n
}

// TestSourceEndsItsGoroutine: all waiters get SERVFAIL, and the next query works.
func TestSourceEndsItsGoroutine(t *testing.T) {
	var asked atomic.Int32
	ts := newTestServer(t, Config{}, zone("example.org.", nil, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if asked.Add(1) == 1 {
			runtime.Goexit()
		}
		return example(t)(ctx, m)
	}))
	for _, want := range []int{dns.RcodeServerFailure, dns.RcodeSuccess} {
		if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != want {
			t.Errorf("query %d: %v", asked.Load(), r)
		}
	}
}

// TestSlowClientDelaysNoOther: a TCP client that reads nothing does not delay other
// clients that wait for the same answer.
func TestSlowClientDelaysNoOther(t *testing.T) {
	release := make(chan struct{})
	limits := defaultTCP
	limits.Write = 20 * time.Second
	ts := newTestServer(t, Config{TCP: limits}, zone("example.org.", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		<-release
		if m.Question[0].Qtype == dns.TypeTXT {
			return reply(t, m, withTXT(900)...), nil
		}
		return nil, errors.New("down")
	}))
	slow := dialTCP(t, ts)
	defer slow.Close()
	_ = slow.SetReadBuffer(1)
	frame := pack(t, query("big.example.org.", dns.TypeTXT))
	frame = append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...)
	const unread = 100 // replies of 60 kB, more than the kernel buffers
	for range unread {
		if _, err := slow.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	for ts.inflight.waiters() < unread {
		if t.Context().Err() != nil {
			t.Fatal("not all queries arrived")
		}
		time.Sleep(time.Millisecond)
	}
	got := make(chan *dns.Msg)
	go func() { got <- ts.ask(t, "udp", query("big.example.org.", dns.TypeTXT)) }()
	for ts.inflight.waiters() < unread+1 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	select {
	case r := <-got:
		if !r.Truncated {
			t.Errorf("reply %v", r)
		}
	case <-time.After(10 * time.Second):
		t.Error("no reply while another client does not read")
	}
}

// TestInflightLeaveInAnyOrder: waiters leave in random order. Those that stay get the
// answer, once each.
func TestInflightLeaveInAnyOrder(t *testing.T) {
	var f inflight
	all := make([]*answers, 100)
	var x *exchange
	for i := range all {
		all[i] = newAnswers()
		if y, _ := f.join("key", all[i], time.Time{}, none); y != nil {
			x = y
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, w := range all[:60] {
		if !f.leave("key", w, nil) || f.leave("key", w, nil) {
			t.Error("not left exactly once")
		}
	}
	waiting, _ := f.end(x, time.Time{})
	for _, w := range waiting {
		w.deliver(answer{})
	}
	for i, w := range all {
		if len(w.got) != boolIndex(i >= 60) {
			t.Errorf("waiter %d got %d answers", i, len(w.got))
		}
	}
}

// TestInflightWaits counts the queries of a client that wait for their own answer.
func TestInflightWaits(t *testing.T) {
	var f inflight
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	of := func(client netip.Addr) *job {
		j := new(job)
		j.q.client = netip.AddrPortFrom(client, 1)
		return j
	}
	first, second, other := of(a), of(a), of(a)
	other.sibling = new(siblingWait)
	if f.waits("key", a) {
		t.Error("a client waits for nothing")
	}
	f.join("key", first, time.Time{}, none)
	f.join("key", other, time.Time{}, none)
	for _, step := range []struct {
		do   func()
		want bool
	}{
		{func() {}, true},
		{func() { f.join("key", second, time.Time{}, none) }, true},
		{func() { f.leave("key", first, nil) }, true},
		{func() { f.leave("key", second, nil) }, false},
		{func() { f.join("key", first, time.Time{}, none) }, true},
	} {
		step.do()
		if f.waits("key", a) != step.want || f.waits("key", b) {
			t.Errorf("%v, want %v", f.waits("key", a), step.want)
		}
	}
}

// BenchmarkInflightLeave has n waiters for one answer leave, the last first and in
// the order of their arrival. The time per waiter does not grow with n.
func BenchmarkInflightLeave(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]*answers, n)
			for i := range all {
				all[i] = newAnswers()
			}
			for i := 0; i < b.N; i += n {
				var f inflight
				for _, w := range all {
					f.join("key", w, time.Time{}, none)
				}
				for _, w := range all {
					f.leave("key", w, nil)
				}
			}
		})
	}
}
