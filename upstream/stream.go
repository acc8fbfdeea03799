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

// overStream asks s over TCP or TLS: over an idle connection if there is one,
// and if that turns out to be dead, once more over a new one within the same
// time. An idle connection gets half of the time, because one whose peer
// vanished without a word (a Service's endpoint that was replaced) is only
// told by its silence.
func (p *Pool) overStream(ctx context.Context, s *server, q *question, edns bool) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AttemptTimeout)
	defer cancel()
	if c := s.idle.take(p.cfg.Now().Add(-p.cfg.Expire)); c != nil {
		s.metrics.connHit(s.proto())
		half, cancel := context.WithTimeout(ctx, p.cfg.AttemptTimeout/2)
		m, err := p.roundTrip(half, s, c, q.newQuery(edns))
		cancel()
		if err == nil || ctx.Err() != nil {
			return m, err
		}
		if isTimeout(err) {
			s.idle.drop() // the others are as old or older
		}
	}
	s.metrics.connMiss(s.proto())
	c, err := p.dial(ctx, s)
	if err != nil {
		return nil, err
	}
	return p.roundTrip(ctx, s, c, q.newQuery(edns))
}

func (s *server) proto() string {
	if s.TLS {
		return "tcp-tls"
	}
	return "tcp"
}

// dial opens a connection to s and, with TLS, shakes hands.
func (p *Pool) dial(ctx context.Context, s *server) (net.Conn, error) {
	c, err := p.cfg.Dialer.DialContext(ctx, "tcp", s.to)
	if err != nil || !s.TLS {
		return c, err
	}
	t := tls.Client(c, s.tls)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return t, nil
}

// roundTrip sends q over c, which it owns: c is kept for reuse after an answer
// and closed otherwise, so that no late reply is ever read as another's.
func (p *Pool) roundTrip(ctx context.Context, s *server, c net.Conn, q *query) (*dns.Msg, error) {
	stop := obey(ctx, c)
	m, err := s.converse(c, q)
	if !stop() || err != nil || c.SetDeadline(time.Time{}) != nil {
		_ = c.Close()
		return m, err
	}
	if first := s.idle.put(c, p.cfg.Now()); first {
		p.nudge()
	}
	return m, nil
}

// converse writes q and reads the reply. One query is under way on a
// connection, and strangers cannot inject, so a reply to something else means
// that the peer is confused.
func (s *server) converse(c net.Conn, q *query) (*dns.Msg, error) {
	if _, err := c.Write(q.framed); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, reply); err != nil {
		return nil, err
	}
	m, v := q.match(reply)
	if v != accepted {
		s.metrics.ignore(v)
		return nil, fmt.Errorf("the reply is no reply to the query (%s)", v)
	}
	return m, nil
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
