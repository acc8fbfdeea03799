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

// puts is a Fastpath that records how long answers may be used, by type, and holds none.
type puts struct {
	idleFastpath
	mu   sync.Mutex
	left map[uint16]time.Duration
}

func (*puts) Heard(netip.AddrPort, uint16, int) bool { return true }

func (p *puts) Put(a KernelAnswer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left[binary.BigEndian.Uint16(a.Question[len(a.Question)-5:])] = a.Left
	return false
}

// TestKernelGetsWhatTwoTypesJudge: an answer that normalize judges by both types expires
// with the one that expires first. An answer that normalize changes stays out.
func TestKernelGetsWhatTwoTypesJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, aaaa kind
		want    time.Duration // of AAAA, whose own TTL is 60 s; that of A is 20 s
	}{
		{"NXDOMAIN for both", nx, nx, 20 * time.Second},
		{"no data, and an address of the other type", data, nodataSOA, 20 * time.Second},
		{"rewritten", nodataSOA, nodataSOA, 0},
		{"repaired", data, nx, 0},
		{"an address", nx, data, 60 * time.Second},
	} {
		clock := &fakeClock{t: time.Now()}
		z := zone(".", cacheAt(t, clock.Now), func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
			k, ttl := c.aaaa, uint32(60)
			if m.Question[0].Qtype == dns.TypeA {
				k, ttl = c.a, 20
			}
			r, err := answerAs(t, ctx, m, k)
			for _, rr := range append(r.Answer, r.Ns...) {
				rr.Header().Ttl = ttl
				if soa, ok := rr.(*dns.SOA); ok {
					soa.Minttl = ttl
				}
			}
			return r, err
		})
		var err error
		if z.Normalise, err = NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		ts, fast := newTestServer(t, Config{Now: clock.Now}), &puts{left: make(map[uint16]time.Duration)}
		if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: []*Zone{z}, Fastpath: fast}}); err != nil {
			t.Fatal(err)
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeAAAA} {
			ts.ask(t, "udp", query("x.example.com.", qtype))
		}
		fast.mu.Lock()
		if got := fast.left[dns.TypeAAAA]; got != c.want {
			t.Errorf("%s: the kernel may answer for %v, want %v", c.name, got, c.want)
		}
		fast.mu.Unlock()
	}
}
