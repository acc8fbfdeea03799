package redirect

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/bpf"
)

// serveCounted answers queries if it answers at all, and counts them.
func serveCounted(t *testing.T, answers bool) (netip.AddrPort, *atomic.Int64) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		count.Add(1)
		if answers {
			_ = w.WriteMsg(new(dns.Msg).SetReply(q))
		}
	})}
	go func() { _ = s.ActivateAndServe() }()
	t.Cleanup(func() { _ = s.Shutdown() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort(), &count
}

// A round finds a target that does not answer while a fallback does. It asks fallbacks
// only then.
func TestReach(t *testing.T) {
	good, _ := serveCounted(t, true)
	bad, _ := serveCounted(t, false)
	fallback, asked := serveCounted(t, true)
	for _, tc := range []struct {
		name                     string
		targets                  []netip.AddrPort // of one service, from a pod each
		fallback                 netip.AddrPort
		unreachable, askFallback bool
	}{
		{"answers", []netip.AddrPort{good, good}, fallback, false, false},
		{"answers one pod", []netip.AddrPort{bad, good, bad}, fallback, false, false},
		{"answers none", []netip.AddrPort{bad, bad}, fallback, true, true},
		{"nothing answers", []netip.AddrPort{bad}, bad, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked.Store(0)
			r := newReachResult([]bpf.Service{{Target: tc.targets[0]}})
			var batch []podSockets
			for _, target := range tc.targets {
				batch = append(batch, podSockets{target: dial(t, target), fallback: []net.Conn{dial(t, tc.fallback)}})
			}
			r.add(t.Context(), batch)
			if err := r.verdict(); err != nil != tc.unreachable {
				t.Errorf("verdict: %v", err)
			}
			if got := asked.Load() > 0; got != tc.askFallback {
				t.Errorf("the fallback was asked: %t", got)
			}
		})
	}
}

func dial(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	return c
}
