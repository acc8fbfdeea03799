package daemon

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// countingListener counts connections.
type countingListener struct {
	net.Listener
	accepted atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// TestExpire checks that connections are kept for the time of expire. With 0 none is
// kept, as in CoreDNS.
func TestExpire(t *testing.T) {
	for _, tt := range []struct {
		expire time.Duration
		want   int32
	}{{0, 3}, {time.Hour, 1}} {
		l := &countingListener{Listener: listenLoopback(t)}
		idle := func() time.Duration { return time.Minute }
		s := &dns.Server{Listener: l, IdleTimeout: idle, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
		})}
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		c, err := poolConfig(&config.Forward{From: ".", ForceTCP: true, Policy: config.PolicySequential, Expire: tt.expire})
		if err != nil {
			t.Fatal(err)
		}
		// A late reply on a busy machine must not cause another connection.
		c.NoHedge, c.Timeout, c.AttemptTimeout = true, time.Minute, time.Minute
		c.Endpoints = []upstream.Endpoint{{Addr: l.Addr().(*net.TCPAddr).AddrPort()}}
		p, err := upstream.NewPool(c)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := p.Exchange(t.Context(), new(dns.Msg).SetQuestion("example.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
		}
		if n := l.accepted.Load(); n != tt.want {
			t.Errorf("expire %v: %d connections for 3 queries, want %d", tt.expire, n, tt.want)
		}
		p.SetEndpoints(nil) // closes idle connections
		_ = s.Shutdown()
		<-done
	}
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
