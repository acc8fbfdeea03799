package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	a, b, other := make(answers, 1), make(answers, 1), make(answers, 1)
	if first, raced := f.join("key", a, start); !first || raced {
		t.Errorf("first waiter: first %v, raced %v", first, raced)
	}
	if first, _ := f.join("key", b, start); first {
		t.Error("second waiter is first, too")
	}
	if first, _ := f.join("other", other, start); !first {
		t.Error("another key is not independent")
	}
	waiting := f.end("key", start.Add(time.Second))
	if len(waiting) != 2 || waiting[0] != waiter(a) || waiting[1] != waiter(b) {
		t.Errorf("waiting: %v", waiting)
	}
	for _, tt := range []struct {
		since time.Duration
		raced bool
	}{{0, true}, {time.Second, true}, {2 * time.Second, false}} {
		if first, raced := f.join("key", a, start.Add(tt.since)); !first || raced != tt.raced {
			t.Errorf("joined for a lookup after %v: first %v, raced %v", tt.since, first, raced)
		}
		f.end("key", start) // an earlier end does not hide a later one
	}
}

func TestInflightLeave(t *testing.T) {
	var f inflight
	a, b := make(answers, 1), make(answers, 1)
	if f.leave("key", a) {
		t.Error("left a key that is not in flight")
	}
	f.join("key", a, time.Time{})
	if f.leave("key", b) {
		t.Error("left without having joined")
	}
	if !f.leave("key", a) || f.leave("key", a) {
		t.Error("not left exactly once")
	}
	if first, _ := f.join("key", b, time.Time{}); first {
		t.Error("the exchange ended with its last waiter")
	}
	if waiting := f.end("key", time.Time{}); len(waiting) != 1 || waiting[0] != waiter(b) {
		t.Errorf("waiting: %v", waiting)
	}
}

// TestInflightConcurrentUse is for the race detector. Each waiter gets its
// answer exactly once, or leaves.
func TestInflightConcurrentUse(t *testing.T) {
	var f inflight
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				key, w := fmt.Sprint(i%3), make(answers, 1)
				if first, _ := f.join(key, w, time.Now()); first {
					for _, o := range f.end(key, time.Now()) {
						o.deliver(answer{}, false)
					}
				} else if g == 0 && f.leave(key, w) {
					continue
				}
				<-w
			}
		})
	}
	wg.Wait()
	if len(f.waiting) != 0 {
		t.Errorf("%d exchanges left", len(f.waiting))
	}
}

// waiters counts those who wait for any answer.
func (f *inflight) waiters() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ws := range f.waiting {
		n += len(*ws)
	}
	return n
}

// TestSourceEndsItsGoroutine: whoever waits gets SERVFAIL, and the next query
// works.
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

// TestSlowClientDelaysNoOther: a TCP client that reads nothing does not delay
// the others who wait for the same answer.
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
