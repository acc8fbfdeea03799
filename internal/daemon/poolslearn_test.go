package daemon

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// namedServer answers every query with a TXT record that holds its name.
func namedServer(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		r.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 30}, Txt: []string{name}}}
		_ = w.WriteMsg(r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.ActivateAndServe() }()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// A forward with kubernetes_endpoints uses the endpoints learned before and after
// its pool opened, and TO while none is known. Other forwards use TO only.
func TestPoolsLearn(t *testing.T) {
	to, first, second := namedServer(t, "to"), namedServer(t, "first"), namedServer(t, "second")
	changes := 0
	p := newPools(t.Context(), poolsConfig{
		Logger: slog.New(slog.DiscardHandler), Metrics: upstream.NewMetrics(prometheus.NewRegistry()),
		Own: func(a netip.AddrPort) bool { return a.Port() == 1 }, Changed: func() { changes++ },
	})
	t.Cleanup(func() { p.retain(nil) })
	open := func(key string, wants bool) *upstream.Pool {
		t.Helper()
		pool, err := p.open(key, &config.Forward{
			From: ".", To: []config.Upstream{{Addr: to}}, Policy: config.PolicyRandom, KubernetesEndpoints: wants,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	learn := func(addrs ...netip.AddrPort) {
		t.Helper()
		if err := p.learn(addrs); err != nil {
			t.Fatal(err)
		}
	}
	wantFrom := func(pool *upstream.Pool, want string) {
		t.Helper()
		r, err := pool.Exchange(t.Context(), new(dns.Msg).SetQuestion("example.org.", dns.TypeTXT))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Answer[0].(*dns.TXT).Txt[0]; got != want {
			t.Errorf("%q answered, want %q", got, want)
		}
	}
	other, early := open("other", false), open("early", true)
	wantFrom(early, "to")
	learn(first)
	wantFrom(early, "first")
	wantFrom(other, "to")
	late := open("late", true)
	wantFrom(late, "first")
	learn(second)
	wantFrom(early, "second")
	wantFrom(late, "second")
	learn(netip.MustParseAddrPort("127.0.0.1:1")) // this daemon itself
	wantFrom(early, "to")
	learn()
	wantFrom(late, "to")
	wantFrom(other, "to")
	if changes != 4 {
		t.Errorf("%d changes reported, want 4", changes)
	}
}

// Two pools share the limit of sockets. When one is gone, the other has all.
func TestPoolsShareSockets(t *testing.T) {
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	p := newPools(t.Context(), poolsConfig{
		Logger: slog.New(slog.DiscardHandler), Metrics: upstream.NewMetrics(prometheus.NewRegistry()),
		NoHedge: true, Limits: upstream.Limits{Sockets: 8, Conns: 8, Pending: 1000},
	})
	t.Cleanup(func() { p.retain(nil) })
	open := func(key string) *upstream.Pool {
		t.Helper()
		pool, err := p.open(key, &config.Forward{From: ".", To: []config.Upstream{{Addr: to}}, Policy: config.PolicyRandom}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	a, b := open("a"), open("b")
	ports := func(pool *upstream.Pool) int {
		t.Helper()
		const queries = 40
		for range queries {
			q := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
			defer pool.Start(q, time.Time{}, func(*dns.Msg, error) {})() // cancels it
		}
		seen := make(map[netip.AddrPort]bool)
		for range queries {
			_, from, err := silent.ReadFromUDPAddrPort(make([]byte, 512))
			if err != nil {
				t.Fatal(err)
			}
			seen[from] = true
		}
		return len(seen)
	}
	if n := ports(a); n > 4 {
		t.Errorf("one of two pools uses %d sockets of 8", n)
	}
	p.retain(map[string]bool{"b": true})
	if n := ports(b); n <= 4 || n > 8 {
		t.Errorf("the last pool uses %d sockets of 8", n)
	}
}
