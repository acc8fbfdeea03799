package upstream

import (
	"net"
	"net/netip"
	"time"
)

// Tap takes a copy of a message. It must not block.
type Tap func(TapMessage)

// TapMessage is a DNS message that was sent or received. Wire is valid only during the
// call of the Tap.
type TapMessage struct {
	TCP, TLS         bool
	Client, Server   netip.AddrPort // Client is invalid if it is unknown
	Queried, Replied time.Time      // Replied is zero in a query
	Wire             []byte
}

// tap passes the pool's Tap a message to or from q's server. conn may be nil.
func (q *query) tap(conn net.Conn, replied time.Time, wire []byte) {
	t := q.s.pool.cfg.Tap
	if t == nil || q.a.probe {
		return
	}
	m := TapMessage{TCP: q.stream, TLS: q.s.TLS, Server: q.s.Addr, Queried: q.sent, Replied: replied, Wire: wire}
	if conn != nil {
		switch a := conn.LocalAddr().(type) {
		case *net.UDPAddr:
			m.Client = a.AddrPort()
		case *net.TCPAddr:
			m.Client = a.AddrPort()
		}
		m.Client = netip.AddrPortFrom(m.Client.Addr().Unmap(), m.Client.Port())
	}
	t(m)
}
