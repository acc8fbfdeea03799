package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/cache"
)

// sourceFunc is a Source that is a function.
type sourceFunc func(ctx context.Context, m *dns.Msg) (*dns.Msg, error)

func (f sourceFunc) Exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) { return f(ctx, m) }

// reply is an answer to m with the given records.
func reply(t testing.TB, m *dns.Msg, records ...string) *dns.Msg {
	t.Helper()
	r := new(dns.Msg).SetReply(m)
	r.RecursionAvailable = true
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			t.Errorf("record %q: %v", s, err)
			continue
		}
		r.Answer = append(r.Answer, rr)
	}
	return r
}

// addrs counts loopback addresses. Each is used once in a process, and other
// processes usually use other ones. Tests with the same address would get each
// other's queries, because ports are shared.
var addrs atomic.Uint32

func nextAddr() netip.AddrPort {
	n := uint32(os.Getpid())<<10 + addrs.Add(1)
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 127<<24|1<<23|n&(1<<23-1))
	return netip.AddrPortFrom(netip.AddrFrom4(b), 5300)
}

// testServer is a Server with one address.
type testServer struct {
	*Server
	addr netip.AddrPort
	reg  *prometheus.Registry
}

// newTestServer serves zones until the end of the test.
func newTestServer(t testing.TB, c Config, zones ...*Zone) *testServer {
	t.Helper()
	ts := &testServer{addr: nextAddr(), reg: prometheus.NewRegistry()}
	if c.Workers == 0 {
		c.Workers = 2
	}
	m, err := NewMetrics(ts.reg, c.Workers)
	if err != nil {
		t.Fatal(err)
	}
	c.Metrics, c.Logger = m, slog.New(slog.DiscardHandler)
	if c.Now == nil {
		c.Now = time.Now
	}
	ts.Server = New(c)
	if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: zones}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := ts.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return ts
}

// newCache is a cache with CoreDNS's bounds.
func newCache(t testing.TB) *cache.Cache { return cacheAt(t, nil) }

// cacheAt is newCache with the given clock.
func cacheAt(t testing.TB, now func() time.Time) *cache.Cache {
	t.Helper()
	return cache.New(cache.Options{Bytes: 8 << 20, Now: now}).Cache(t.Name(), cache.Policy{
		Success:  cache.Class{Entries: 9984, MinTTL: 5 * time.Second, MaxTTL: time.Hour},
		Denial:   cache.Class{Entries: 9984, MinTTL: 5 * time.Second, MaxTTL: 30 * time.Minute},
		ServFail: 5 * time.Second,
	})
}

// zone is a zone with one source.
func zone(name string, c *cache.Cache, f sourceFunc) *Zone {
	return &Zone{Name: name, Cache: c, Sources: []NamedSource{{Name: "forward", Source: f}}}
}

// ask sends m over network and fails the test without a reply.
func (ts *testServer) ask(t testing.TB, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: 30 * time.Second}
	r, _, err := c.Exchange(m, ts.addr.String())
	if err != nil {
		t.Fatalf("%s %s: %v", network, m.Question[0].String(), err)
	}
	return r
}

// query makes a question with options set by opts.
func query(name string, qtype uint16, opts ...func(*dns.Msg)) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, qtype)
	for _, o := range opts {
		o(m)
	}
	return m
}

func withEDNS(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

func withTXT(n int) []string {
	var rrs []string
	for i := range n {
		rrs = append(rrs, fmt.Sprintf("big.example.org. 60 IN TXT \"%03d %s\"", i, "0123456789012345678901234567890123456789"))
	}
	return rrs
}

// askFrom is ask over UDP from an address of the host.
func (ts *testServer) askFrom(t testing.TB, ip string, m *dns.Msg) *dns.Msg {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(ip)}}
	c := &dns.Client{Dialer: d, Timeout: 10 * time.Second}
	r, _, err := c.Exchange(m, ts.addr.String())
	if err != nil {
		t.Fatalf("from %s: %v", ip, err)
	}
	return r
}
