package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// idleFastpath answers nothing.
type idleFastpath struct{}

func (idleFastpath) Listen([]netip.AddrPort) uint32         { return 1 }
func (idleFastpath) Heard(netip.AddrPort, uint16, int) bool { return false }
func (idleFastpath) Put(KernelAnswer) bool                  { return false }
func (idleFastpath) Counts(int) KernelCounts                { return KernelCounts{} }

// TestTooManyKernelZones: zones for which the kernel has no counters are reported once,
// and are not answered there.
func TestTooManyKernelZones(t *testing.T) {
	ts, c := newTestServer(t, Config{}, zone("first.example.", newCache(t), nil)), newCache(t)
	var log strings.Builder
	ts.log = slog.New(slog.NewTextHandler(&log, nil))
	apply := func(n int) {
		t.Helper()
		var zones []*Zone
		for i := range n {
			zones = append(zones, zone(fmt.Sprintf("z%d.example.", i), c, nil))
		}
		if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: zones, Fastpath: idleFastpath{}}}); err != nil {
			t.Fatal(err)
		}
	}
	apply(KernelZones)
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	apply(KernelZones + 1)
	apply(KernelZones + 2)
	if n := strings.Count(log.String(), "no counters"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, &log)
	}
}

// listening is a Fastpath that records the addresses of the last Listen.
type listening struct {
	idleFastpath
	addrs []netip.AddrPort
}

func (l *listening) Listen(addrs []netip.AddrPort) uint32 {
	l.addrs = addrs
	return 1
}

// TestLastKernelAddress: if a configuration has no address for the kernel, the kernel stops
// giving the answers of the last one.
func TestLastKernelAddress(t *testing.T) {
	ts, fast := newTestServer(t, Config{}), new(listening)
	for _, f := range []Fastpath{fast, nil} {
		if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Fastpath: f}}); err != nil {
			t.Fatal(err)
		}
		if (len(fast.addrs) > 0) != (f != nil) {
			t.Errorf("fast path %v: the kernel answers for %v", f, fast.addrs)
		}
	}
}

// puts is a Fastpath that holds nothing. By type of the query, it records how long answers
// may be used, and which counter of the normalize directive each had.
type puts struct {
	idleFastpath
	mu     sync.Mutex
	left   map[uint16]time.Duration
	judged map[uint16]int
	counts KernelCounts
}

func (*puts) Heard(netip.AddrPort, uint16, int) bool { return true }

func (p *puts) Put(a KernelAnswer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	qtype := binary.BigEndian.Uint16(a.Question[len(a.Question)-5:])
	p.left[qtype], p.judged[qtype] = a.Left, a.Judged
	return false
}

func (p *puts) Counts(int) KernelCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// judgedServer makes a server with the normalize directive whose upstream has answers of
// two kinds for A, with a TTL of 20 s, and AAAA, with 60 s.
func judgedServer(t *testing.T, a, aaaa kind, observe bool) (*testServer, *puts) {
	t.Helper()
	clock := &fakeClock{t: time.Now()}
	z := zone(".", cacheAt(t, clock.Now), func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		k, ttl := aaaa, uint32(60)
		if m.Question[0].Qtype == dns.TypeA {
			k, ttl = a, 20
		}
		r, err := answerAs(t, ctx, m, k)
		if err != nil {
			return nil, err
		}
		for _, rr := range append(r.Answer, r.Ns...) {
			rr.Header().Ttl = ttl
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Minttl = ttl
			}
		}
		return r, nil
	})
	var err error
	z.Normalise, err = NewNormalise(NormaliseConfig{
		Suffixes: []string{"example.com."}, Repair: true, Observe: observe, Timeout: 20 * time.Second, TTL: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ts := newTestServer(t, Config{Now: clock.Now})
	fast := &puts{left: make(map[uint16]time.Duration), judged: make(map[uint16]int)}
	if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: []*Zone{z}, Fastpath: fast}}); err != nil {
		t.Fatal(err)
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeAAAA} {
		ts.ask(t, "udp", query("x.example.com.", qtype))
	}
	return ts, fast
}

// waitFor queries until the answer for a type is given to the kernel. A hit does not
// give it while another goroutine uses a part of the cache.
func (p *puts) waitFor(t *testing.T, ts *testServer, qtype uint16) {
	t.Helper()
	waitFor(t, "an answer for the kernel", func() bool {
		ts.ask(t, "udp", query("x.example.com.", qtype))
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.left[qtype] > 0
	})
}

// TestKernelGetsWhatTwoTypesJudge: an answer that normalize judges by both types expires
// with the one that expires first. An answer that normalize changes stays out. So does
// one that it would change if it did not only observe: the next lookup may have another
// result.
func TestKernelGetsWhatTwoTypesJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, aaaa kind
		want    time.Duration // of AAAA
	}{
		{"NXDOMAIN for both", nx, nx, 20 * time.Second},
		{"no data, and an address of the other type", data, nodataSOA, 20 * time.Second},
		{"rewritten", nodataSOA, nodataSOA, 0},
		{"repaired", data, nx, 0},
		{"no data, and no answer for the other type", fail, nodataSOA, 0},
		{"an address", nx, data, 60 * time.Second},
	} {
		for _, observe := range []bool{false, true} {
			ts, fast := judgedServer(t, c.a, c.aaaa, observe)
			if c.want > 0 {
				fast.waitFor(t, ts, dns.TypeAAAA)
			}
			fast.mu.Lock()
			if got := fast.left[dns.TypeAAAA]; got != c.want {
				t.Errorf("%s, observe %t: the kernel may answer for %v, want %v", c.name, observe, got, c.want)
			}
			fast.mu.Unlock()
		}
	}
}

// TestUnchanged: a reply that differs from the upstream's answer in anything stays out of
// the kernel.
func TestUnchanged(t *testing.T) {
	q := query("x.example.com.", dns.TypeA)
	key := cache.AppendKey(nil, []byte("\x01x\x07example\x03com\x00"), dns.TypeA, dns.ClassINET, false, false, false)
	e, err := newCache(t).Put(key, reply(t, q, "x.example.com. 60 IN A 192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	if v := asIs(e, notJudged); !v.unchanged(e) {
		t.Error("the upstream's answer counts as changed")
	}
	for name, change := range map[string]func(v *view){
		"rcode": func(v *view) { v.rcode = dns.RcodeNameError }, "TTL": func(v *view) { v.maxTTL = 5 },
		"records": func(v *view) { v.bare = true }, "note": func(v *view) { v.note = emptyNote() },
	} {
		v := asIs(e, siblingData)
		change(&v)
		if v.unchanged(e) {
			t.Errorf("a reply with another %s counts as unchanged", name)
		}
	}
}

// TestKernelResultsAreCounted: what the kernel counts for the results of the normalize
// directive is in its metric.
func TestKernelResultsAreCounted(t *testing.T) {
	for _, c := range []struct {
		a, aaaa kind
		qtype   uint16
		label   string
	}{
		{data, nodataSOA, dns.TypeAAAA, "sibling_data"},
		{nodataSOA, data, dns.TypeA, "sibling_data"},
		{data, nsec, dns.TypeAAAA, "dnssec"},
	} {
		ts, fast := judgedServer(t, c.a, c.aaaa, false)
		fast.waitFor(t, ts, c.qtype)
		before := ts.judged(t, c.qtype, c.label)
		fast.mu.Lock()
		fast.counts.Judged[fast.judged[c.qtype]] = 7
		fast.mu.Unlock()
		if n := ts.judged(t, c.qtype, c.label) - before; n != 7 {
			t.Errorf("%s/%s: the kernel's answers count %v times as %s, want 7", c.a, c.aaaa, n, c.label)
		}
	}
}

// judged is a value of nodens_normalize_total.
func (ts *testServer) judged(t *testing.T, qtype uint16, result string) (sum float64) {
	t.Helper()
	families, err := ts.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if l := m.Label; f.GetName() == "nodens_normalize_total" && l[0].GetValue() == dns.TypeToString[qtype] && l[1].GetValue() == result {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
