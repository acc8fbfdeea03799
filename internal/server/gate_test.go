package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestGate: a listener with a gate answers queries from interfaces that are not
// blocked, over UDP and TCP and both address families. It drops and counts
// others. The interface is loopback, which every machine has. The client's
// address differs from the listener's, except in the second case.
func TestGate(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip("no loopback interface:", err)
	}
	free, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6:", err)
	}
	port := free.LocalAddr().(*net.UDPAddr).AddrPort()
	_ = free.Close()
	for _, tc := range []struct {
		name   string
		server netip.AddrPort
		client string
	}{
		{"IPv4", nextAddr(), "127.0.0.2"},
		{"IPv6 from itself", port, "::1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gate := NewGate()
			ts := newTestServer(t, Config{})
			if err := ts.Apply(t.Context(), []Binding{{Addr: tc.server, Gate: gate}}); err != nil {
				t.Fatal(err)
			}
			g := gated{gate: gate, addr: tc.server, from: netip.MustParseAddr(tc.client)}
			own := g.from == g.addr.Addr()
			g.expect(t, "no interface is known", false)
			gate.SetBlocked([]int{lo.Index + 1})
			g.expect(t, "another is blocked", true)
			gate.SetBlocked([]int{lo.Index})
			g.expect(t, "blocked", own)
			gate.SetBlocked(nil)
			g.expect(t, "not blocked", true)
		})
	}
}

type gated struct {
	gate *Gate
	addr netip.AddrPort
	from netip.Addr
}

func (g gated) expect(t *testing.T, when string, want bool) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		if err := g.ask(network, want); err != nil {
			t.Errorf("%s, %s: want an answer: %t: %v", when, network, want, err)
		}
	}
}

// ask sends a query and waits for the reply or until the query is counted as
// refused.
func (g gated) ask(network string, want bool) error {
	before := g.gate.Refused()
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.UDPAddr{IP: g.from.AsSlice()}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: g.from.AsSlice()}
	}
	c, err := d.Dial(network, g.addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	dc := &dns.Conn{Conn: c}
	if err := dc.WriteMsg(query("example.org.", dns.TypeA)); err != nil && want {
		return err
	}
	if want {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err := dc.ReadMsg()
		if n := g.gate.Refused(); err == nil && n > before {
			err = errors.New("counted as refused")
		}
		return err
	}
	for end := time.Now().Add(20 * time.Second); g.gate.Refused() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("not counted")
		}
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
	if r, err := dc.ReadMsg(); err == nil {
		return fmt.Errorf("reply %v", r)
	}
	return nil
}

// TestProber: a prober reaches all workers. It returns an error if no worker
// replies, and then stays at the same socket.
func TestProber(t *testing.T) {
	ts := newTestServer(t, Config{Workers: 2}, HeartbeatZone())
	p, err := NewProber(ts.addr, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range len(p.conns) + 1 {
		if err := p.Ask(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	families, err := ts.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "coredns_dns_requests_total" {
			t.Errorf("counted as clients' queries: %v", f.Metric)
		}
	}
	if err := ts.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	ts.retiring.Wait()
	for range 2 {
		if at := p.next; p.Ask(20*time.Millisecond) == nil || p.next != at {
			t.Errorf("no server: socket %d, then %d, want an error and the same socket", at, p.next)
		}
	}
}
