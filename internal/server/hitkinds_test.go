package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// listener is the test server's only listener.
func (ts *testServer) listener() *listener {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.listeners[ts.addr]
}

// TestNoKindOfHitAllocates makes every kind of reply from the cache, with and
// without EDNS, as a reader of batches does.
func TestNoKindOfHitAllocates(t *testing.T) {
	begin := time.Now()
	now := &fakeClock{t: begin}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour},
		StaleFor: time.Hour, ServFail: 5 * time.Second, Prefetch: cache.Prefetch{Amount: 1, Duration: time.Minute, Percentage: 10},
	})
	down := make(chan struct{})
	ts := newTestServer(t, Config{Now: now.Now}, zone("example.org.", c, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		switch {
		case strings.HasPrefix(m.Question[0].Name, "broken"):
			return nil, errors.New("down")
		case now.Now().After(begin):
			<-down // blocks refreshes of stale entries
			return nil, errors.New("down")
		}
		return example(t)(ctx, m)
	}))
	defer close(down)
	for _, name := range []string{"www.example.org.", "gone.example.org."} {
		ts.ask(t, "udp", query(name, dns.TypeA))
	}
	wantNoAllocs(t, ts, "fresh answer", "www.example.org.", dns.RcodeSuccess)
	wantNoAllocs(t, ts, "other spelling", "WwW.eXample.ORG.", dns.RcodeSuccess)
	wantNoAllocs(t, ts, "fresh denial", "gone.example.org.", dns.RcodeNameError)
	now.advance(2 * time.Minute)
	wantNoAllocs(t, ts, "stale answer", "www.example.org.", dns.RcodeSuccess)
	wantNoAllocs(t, ts, "stale denial", "gone.example.org.", dns.RcodeNameError)
	ts.ask(t, "udp", query("broken.example.org.", dns.TypeA))
	wantNoAllocs(t, ts, "cached failure", "broken.example.org.", dns.RcodeServerFailure)
	wantNoAllocs(t, ts, "no zone", "www.example.com.", dns.RcodeRefused)
}

func wantNoAllocs(t *testing.T, ts *testServer, what, name string, rcode int) {
	t.Helper()
	l := ts.listener()
	for _, opts := range [][]func(*dns.Msg){nil, {withEDNS(1232, false)}} {
		msg := pack(t, query(name, dns.TypeA, opts...))
		mem := &lookupMemory{batch: true, tallies: make([]tally, 0, batchSize)}
		q := Query{memory: mem, client: netip.MustParseAddrPort("127.0.0.1:1")}
		out := make([]byte, 0, 2048)
		reply := func() []byte {
			q.start = ts.clock()
			mem.tallies = mem.tallies[:0]
			got, ok := ts.tryHit(out, l, 0, &q, q.parse(msg))
			if !ok {
				t.Fatalf("%s: no hit", what)
			}
			for i := range mem.tallies {
				mem.tallies[i].count(0)
			}
			return got
		}
		if got := int(reply()[3]) & rcodeMask; got != rcode {
			t.Errorf("%s: rcode %d, want %d", what, got, rcode)
		}
		if n := testing.AllocsPerRun(500, func() { reply() }); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// TestStaleImmediate: clients get an expired answer at once. Upstream gets one
// query for all of them and does not reply.
func TestStaleImmediate(t *testing.T) {
	now := &fakeClock{t: time.Now()}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{Success: cache.Class{MaxTTL: time.Hour}, StaleFor: time.Hour})
	asked, release := make(chan struct{}, 100), make(chan struct{}, 1)
	release <- struct{}{}
	ts := newTestServer(t, Config{Now: now.Now}, zone("example.org.", c, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		asked <- struct{}{}
		<-release
		return example(t)(ctx, m)
	}))
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	<-asked
	now.advance(2 * time.Minute)
	for _, network := range []string{"udp", "tcp", "udp"} {
		r := ts.ask(t, network, query("www.example.org.", dns.TypeA, withEDNS(1232, false)))
		if len(r.Answer) != 1 || r.Answer[0].Header().Ttl != 30 {
			t.Errorf("over %s: %v", network, r)
		}
		if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeStaleAnswer {
			t.Errorf("over %s: %v", network, r.IsEdns0())
		}
	}
	<-asked
	if len(asked) != 0 {
		t.Errorf("upstream got %d more queries", len(asked))
	}
	close(release)
	waitTTL(t, ts, 31)
}

// waitTTL sends queries until the answer from the cache has at least that TTL.
func waitTTL(t *testing.T, ts *testServer, ttl uint32) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
		if len(r.Answer) == 1 && r.Answer[0].Header().Ttl >= ttl {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not refreshed: %v", r)
		}
	}
}

// TestPopularNameNeverMisses queries a name of TTL 60 every five seconds for half an
// hour. Only the first query waits for upstream.
func TestPopularNameNeverMisses(t *testing.T) {
	now, ts, asked := newPrefetching(t)
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	<-asked
	refreshed := 0
	for left, step := 60, 0; step < 360; step++ {
		now.advance(5 * time.Second)
		left -= 5
		ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
		if left > 12 {
			continue
		}
		<-asked
		waitTTL(t, ts, 60)
		refreshed, left = refreshed+1, 60
	}
	if len(asked) != 0 || refreshed != 36 {
		t.Errorf("refreshed %d times, and queried %d more times", refreshed, len(asked))
	}
	if n := ts.lookups("example.org.", lookupMiss); n != 1 {
		t.Errorf("%d queries missed", n)
	}
}

// lookups is the number of a zone's lookups with one result.
func (ts *testServer) lookups(zone string, kind lookup) uint64 {
	ts.metrics.mu.Lock()
	defer ts.metrics.mu.Unlock()
	var n uint64
	for k, z := range ts.metrics.zones {
		for _, s := range z.shards {
			if k[1] == zone {
				n += s.lookups[kind].Load()
			}
		}
	}
	return n
}

// TestMissIsCountedWhenItsReplyComes sends one query after another.
func TestMissIsCountedWhenItsReplyComes(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), (&records{t: t}).Exchange))
	for i := range uint64(200) {
		network := []string{"udp", "tcp"}[i%2]
		ts.ask(t, network, query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
		if n := ts.lookups("example.org.", lookupMiss); n != i+1 {
			t.Fatalf("over %s: %d misses counted after reply %d", network, n, i+1)
		}
	}
}

// TestPipelinedHitsStartNoGoroutine sends a thousand queries on one connection
// before it reads the first reply.
func TestPipelinedHitsStartNoGoroutine(t *testing.T) {
	const queries = 1000
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	c := &dns.Conn{Conn: dialTCP(t, ts)}
	ask := func() {
		if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	answered := func() {
		if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 1 {
			t.Fatalf("reply %v, error %v", r, err)
		}
	}
	ask()
	answered()
	before := goroutinesCreated(t)
	for range queries {
		ask()
	}
	for range queries {
		answered()
	}
	if n := goroutinesCreated(t) - before; n > queries/10 {
		t.Errorf("%d goroutines for %d hits", n, queries)
	}
	if n := ts.lookups("example.org.", lookupSuccess); n != queries {
		t.Errorf("%d hits counted, want %d", n, queries)
	}
}

func goroutinesCreated(t *testing.T) uint64 {
	t.Helper()
	s := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	if metrics.Read(s); s[0].Value.Kind() != metrics.KindUint64 {
		t.Fatalf("%s is not known", s[0].Name)
	}
	return s[0].Value.Uint64()
}
