package upstream

import (
	"context"
	"net"
	"time"

	"github.com/miekg/dns"
)

// maxDatagram is the largest reply read from a UDP socket, in octets: more
// than the udpSize that we ask for, as some servers do not care. A longer one
// is taken for truncated.
const maxDatagram = 4096

// overUDP asks s over a socket of its own, so that the port is new and random,
// and waits for the reply. Everything else that arrives is ignored, RFC 5452
// section 9.1.
func (p *Pool) overUDP(ctx context.Context, s *server, q *query) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AttemptTimeout)
	defer cancel()
	c, err := p.cfg.Dialer.DialContext(ctx, "udp", s.to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := obey(ctx, c)
	defer stop()
	if _, err := c.Write(q.datagram()); err != nil {
		return nil, err
	}
	return p.awaitDatagram(c, s, q)
}

func (p *Pool) awaitDatagram(c net.Conn, s *server, q *query) (*dns.Msg, error) {
	buf := p.buffers.Get().(*[maxDatagram]byte)
	defer p.buffers.Put(buf)
	for {
		n, err := c.Read(buf[:])
		if err != nil {
			return nil, err
		}
		if n == len(buf) {
			buf[2] |= 0x02 // the rest is lost
		}
		m, v := q.match(buf[:n])
		if v == accepted {
			return m, nil
		}
		s.metrics.ignore(v)
	}
}

// obey makes c keep ctx's deadline and give up when ctx is cancelled. The
// function returned ends that and reports whether c's deadline is still free
// to be set.
func obey(ctx context.Context, c net.Conn) (stop func() bool) {
	if t, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(t) // fails on a closed socket only, as the next call will
	}
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}
