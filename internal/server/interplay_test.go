package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// oldToNew rewrites names below old.example.org. to those below example.org.
func oldToNew() *Actions {
	return &Actions{Rewrite: steps(action.RewriteName{Match: ending(".old.example.org."), To: ".example.org.", Auto: true})}
}

// TestRewriteCoalesces queries several spellings of a name at the same time. They
// are one question.
func TestRewriteCoalesces(t *testing.T) {
	ts, src := actionServer(t, oldToNew(), "a.example.org. 60 IN A 192.0.2.1")
	var wg sync.WaitGroup
	for _, name := range []string{"a.old.example.org.", "A.old.example.org.", "a.example.org.", "a.OLD.example.org.", "a.Example.org."} {
		wg.Go(func() {
			if r := ts.ask(t, "udp", query(name, dns.TypeA)); len(r.Answer) != 1 || !strings.EqualFold(r.Answer[0].Header().Name, name) {
				t.Errorf("%s: %v", name, r.Answer)
			}
		})
	}
	wg.Wait()
	if n := src.asked.Load(); n != 1 {
		t.Errorf("%d questions reached the source, want 1", n)
	}
}

// TestRewriteStale: the answer to a rewritten question expires while upstream
// fails.
func TestRewriteStale(t *testing.T) {
	var seconds atomic.Int64
	start := time.Now()
	now := func() time.Time { return start.Add(time.Duration(seconds.Load()) * time.Second) }
	store := cache.New(cache.Options{Bytes: 8 << 20, Now: now})
	c := store.Cache("stale", cache.Policy{
		Success: cache.Class{Entries: 100, MaxTTL: time.Hour}, Denial: cache.Class{Entries: 100, MaxTTL: time.Hour}, StaleFor: time.Hour,
	})
	var down atomic.Bool
	src := sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		if down.Load() {
			return nil, &upstream.Error{EDE: 22, Err: errors.New("upstream is down")}
		}
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	})
	z := &Zone{Name: "example.org.", Cache: c, Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: oldToNew()}
	ts := newTestServer(t, Config{Now: now}, z)
	ask := func() *dns.Msg {
		return ts.ask(t, "udp", query("a.old.example.org.", dns.TypeA, withEDNS(1232, false)))
	}
	if r := ask(); summary(r) != "NOERROR; a.old.example.org. A 192.0.2.1" || edeOf(r) != -1 {
		t.Fatalf("fresh: %v", r)
	}
	seconds.Store(120)
	down.Store(true)
	r := ask()
	if summary(r) != "NOERROR; a.old.example.org. A 192.0.2.1" || edeOf(r) != edeStaleAnswer || r.Answer[0].Header().Ttl != 30 {
		t.Errorf("expired: %v", r)
	}
}

// TestActionsNormalise has an upstream with empty answers for names that do not
// exist. The rewritten name is judged, and DNS64 has nothing to translate.
func TestActionsNormalise(t *testing.T) {
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.org."}, Repair: true, Timeout: 10 * time.Second, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	src := sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		q := m.Question[0]
		if q.Name == "four.example.org." && q.Qtype == dns.TypeA {
			return reply(t, m, q.Name+" 60 IN A 192.0.2.4"), nil
		}
		return reply(t, m), nil
	})
	a := oldToNew()
	a.DNS64 = &action.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), AllowIPv4: true}
	z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: a, Normalise: n}
	ts := newTestServer(t, Config{}, z)
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"none.old.example.org.", dns.TypeA, "NXDOMAIN"},
		{"none.old.example.org.", dns.TypeAAAA, "NXDOMAIN"},
		{"nobody.example.org.", dns.TypeAAAA, "NXDOMAIN"},
		{"four.old.example.org.", dns.TypeA, "NOERROR; four.old.example.org. A 192.0.2.4"},
		{"four.old.example.org.", dns.TypeAAAA, "NOERROR; four.old.example.org. AAAA 64:ff9b::c000:204"},
		{"four.example.org.", dns.TypeAAAA, "NOERROR; four.example.org. AAAA 64:ff9b::c000:204"},
	} {
		for _, round := range []string{"miss", "hit"} {
			if got := summary(ts.ask(t, "udp", query(tt.name, tt.qtype))); got != tt.want {
				t.Errorf("%s %s, %s: got %q, want %q", tt.name, dns.Type(tt.qtype), round, got, tt.want)
			}
		}
	}
}

// TestActionsMetrics checks that cache hits count as hits, and that the query log
// has the client's name, not the rewritten one.
func TestActionsMetrics(t *testing.T) {
	out := new(lines)
	src := &records{t: t, list: []string{"a.example.org. 60 IN A 192.0.2.1"}}
	z := &Zone{Name: "example.org.", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: oldToNew()}
	z.Log = NewQueryLog(nil, out, []LogRule{{Name: ".", Classes: LogAll, Format: ParseLogFormat("{name} {rcode}", false)}})
	ts := newTestServer(t, Config{}, z)
	for range 3 {
		ts.ask(t, "udp", query("a.old.example.org.", dns.TypeA))
	}
	stop(t, ts)
	families, err := ts.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				if l.GetName() == "plugin" || l.GetName() == "type" {
					key += " " + l.GetValue()
				}
			}
			got[key] += m.GetCounter().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"coredns_dns_requests_total A": 3, "coredns_dns_responses_total forward": 1, "coredns_dns_responses_total cache": 2,
		"coredns_cache_hits_total success": 2, "coredns_cache_misses_total": 1,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if text := strings.Join(out.take(), ""); text != strings.Repeat("[INFO] a.old.example.org. NOERROR\n", 3) {
		t.Errorf("log %q", text)
	}
}

// TestTruncatedReply checks that a changed reply has TC if it does not fit, and is
// whole if it fits.
func TestTruncatedReply(t *testing.T) {
	var list []string
	for i := range 40 {
		list = append(list, fmt.Sprintf("big.example.org. 60 IN AAAA 2001:db8::%x", i))
	}
	ts, _ := actionServer(t, oldToNew(), list...)
	for _, tt := range []struct {
		network string
		opt     func(*dns.Msg)
		most    int
	}{{"udp", func(*dns.Msg) {}, 512}, {"udp", withEDNS(4096, false), 1232}, {"tcp", func(*dns.Msg) {}, dns.MaxMsgSize}} {
		r := ts.ask(t, tt.network, query("big.old.example.org.", dns.TypeAAAA, tt.opt))
		r.Compress = true
		if n := r.Len(); n > tt.most {
			t.Errorf("%s: %d bytes, at most %d fit", tt.network, n, tt.most)
		}
		if r.Truncated != (tt.network == "udp" && tt.most == 512) || !r.Truncated && len(r.Answer) != 40 {
			t.Errorf("%s, %d bytes: TC %t with %d answers", tt.network, tt.most, r.Truncated, len(r.Answer))
		}
	}
}
