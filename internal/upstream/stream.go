package upstream

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/miekg/dns"
)

// sessionsKept bounds the TLS sessions kept for resumption, over all servers.
const sessionsKept = 64

// stream is a TCP or TLS connection. One query at a time is under way on it:
// many servers answer the queries of a connection in order, and a slow one
// would hold up the others.
type stream struct {
	net.Conn
	since time.Time     // idle since, by the system's clock
	until time.Time     // to be kept idle, by the pool's
	keep  time.Duration // how long the peer keeps it, RFC 7828; negative: unknown

	in []byte // of the reply that is being read
}

// read sends q, unless that was done, and reads the reply. If the deadline of
// Conn passes it may be called again, with sent, and goes on. A reply to
// something else means that the peer is confused: strangers cannot inject.
func (c *stream) read(s *server, q *query, sent bool) (*dns.Msg, error) {
	if !sent {
		c.in = c.in[:0]
		if _, err := c.Write(q.framed); err != nil {
			return nil, err
		}
	}
	frame, err := c.frame()
	if err != nil {
		return nil, err
	}
	m, v := q.match(frame)
	if v != accepted {
		s.metrics.ignore(v)
		return nil, fmt.Errorf("the reply is no reply to the query (%s)", v)
	}
	if d, ok := keepalive(m); ok {
		c.keep = d
	}
	return m, nil
}

// frame reads until c.in holds a whole frame, and returns what is in it.
func (c *stream) frame() ([]byte, error) {
	if cap(c.in) == 0 {
		c.in = make([]byte, 0, 512)
	}
	for {
		want := 2
		if len(c.in) >= 2 {
			if want += int(binary.BigEndian.Uint16(c.in)); len(c.in) >= want {
				return c.in[2:want], nil
			}
		}
		if want > cap(c.in) {
			c.in = append(make([]byte, 0, want), c.in...)
		}
		n, err := c.Read(c.in[len(c.in):cap(c.in)])
		c.in = c.in[:len(c.in)+n]
		if err != nil && n == 0 {
			if err == io.EOF && len(c.in) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

func (s *server) proto() proto {
	if s.TLS {
		return overTLS
	}
	return overTCP
}

// dial opens a connection to s and, with TLS, shakes hands.
func (p *Pool) dial(ctx context.Context, s *server) (*stream, error) {
	s.metrics.connMiss(s.proto())
	c, err := p.cfg.Dialer.DialContext(ctx, "tcp", s.to)
	if err != nil {
		return nil, err
	}
	if s.TLS {
		t := tls.Client(c, s.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		c = t
	}
	return &stream{Conn: c, keep: -1}, nil
}

// keepStream keeps c, which has just brought an answer and nothing else, for
// as long as we and its peer do.
func (p *Pool) keepStream(s *server, c *stream) {
	keep := p.cfg.Expire
	if c.keep >= 0 {
		keep = min(keep, c.keep)
	}
	more := len(c.in) > 2+int(binary.BigEndian.Uint16(c.in))
	if keep == 0 || more || c.SetDeadline(time.Time{}) != nil {
		_ = c.Close()
		return
	}
	c.since, c.until = time.Now(), p.cfg.Now().Add(keep)
	if first := s.idle.put(c); first {
		p.nudge()
	}
}

// baseTLS is what the servers' configurations start from: at least TLS 1.2,
// and sessions are resumed.
func baseTLS(c *tls.Config) *tls.Config {
	if c == nil {
		c = new(tls.Config)
	}
	c = c.Clone()
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
	if c.ClientSessionCache == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(sessionsKept)
	}
	return c
}

// endpointTLS adds the name that the server's certificate must bear.
func endpointTLS(base *tls.Config, e Endpoint) *tls.Config {
	c := base.Clone()
	switch {
	case e.ServerName != "":
		c.ServerName = e.ServerName
	case c.ServerName == "":
		c.ServerName = e.Addr.Addr().WithZone("").String()
	}
	return c
}
