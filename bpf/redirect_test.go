package bpf

import (
	"net/netip"
	"testing"
)

// shape is one way in which an application queries.
type shape struct {
	name, network, vip string
	connected          bool
	mapped             bool // the application sees v4-mapped addresses
}

func shapes() []shape {
	return []shape{
		{name: "UDP4 unconnected", network: "udp4", vip: vip4},
		{name: "UDP4 connected", network: "udp4", vip: vip4, connected: true},
		{name: "UDP6 unconnected", network: "udp6", vip: vip6},
		{name: "UDP6 connected", network: "udp6", vip: vip6, connected: true},
		{name: "UDP mapped unconnected", network: "udp6", vip: vip4, mapped: true},
		{name: "UDP mapped connected", network: "udp6", vip: vip4, connected: true, mapped: true},
		{name: "TCP4", network: "tcp4", vip: vip4, connected: true},
		{name: "TCP6", network: "tcp6", vip: vip6, connected: true},
		{name: "TCP mapped", network: "tcp6", vip: vip4, connected: true, mapped: true},
	}
}

// seen returns the VIP as the application sees it.
func (s shape) seen() netip.AddrPort {
	vip := ap(s.vip)
	if s.mapped {
		return netip.AddrPortFrom(netip.AddrFrom16(vip.Addr().As16()), vip.Port())
	}
	return vip
}

// ask queries from a new socket, and checks that the application sees the VIP only.
func (p *pod) ask(t *testing.T, s shape, want string) {
	t.Helper()
	p.must(t, request{Op: "socket", Socket: "ask", Network: s.network})
	p.askOn(t, "ask", s, want)
	p.must(t, request{Op: "close", Socket: "ask"})
}

func (p *pod) askOn(t *testing.T, socket string, s shape, want string) {
	t.Helper()
	send := request{Op: "send", Socket: socket, Payload: "q", Addr: s.seen()}
	if s.connected {
		p.must(t, request{Op: "connect", Socket: socket, Addr: s.seen()})
		if got := p.must(t, request{Op: "peer", Socket: socket}).Addr; got != s.seen() {
			t.Errorf("getpeername = %v, want %v", got, s.seen())
		}
		send.Op, send.Addr = "write", netip.AddrPort{}
	}
	p.must(t, send)
	got := p.call(t, request{Op: "recv", Socket: socket})
	if got.Errno != 0 || got.Payload != want+":q" {
		t.Fatalf("answer = %q (%v), want %q", got.Payload, got.Errno, want+":q")
	}
	if from := got.Addr; from != s.seen() && s.network[:3] == "udp" {
		t.Errorf("reply from %v, want %v", from, s.seen())
	}
}

func TestApplicationSeesVIP(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	t.Run("before alive", func(t *testing.T) { p.askAll(t, "core") })
	check(t, r.Alive())
	t.Run("alive", func(t *testing.T) { p.askAll(t, "target") })
	check(t, r.Withdraw())
	t.Run("withdrawn", func(t *testing.T) { p.askAll(t, "core") })
	check(t, r.Alive())
	t.Run("alive again", func(t *testing.T) { p.askAll(t, "target") })
}

func (p *pod) askAll(t *testing.T, want string) {
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) { p.ask(t, s, want) })
	}
}
