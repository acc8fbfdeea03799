package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// sessionsKept bounds the TLS sessions kept for resumption, over all servers.
const sessionsKept = 64

// streamBuffer is the size of a connection's read buffer, in bytes. A longer reply
// gets a separate buffer.
const streamBuffer = 512

// conns holds the TCP or TLS connections to one server.
type conns struct {
	server *server

	mu     sync.Mutex
	all    []*stream
	idle   []*stream // the connections without a waiting query, the last used at the end
	closed bool      // no connection is kept idle
}

// stream is a TCP or TLS connection. Below the limit of connections it has one query
// in flight, because many servers answer the queries of a connection in order. Above
// the limit, queries share connections, and replies may come in any order (RFC 7766
// section 6.2.1.1). conns.mu guards its fields.
type stream struct {
	set     *conns
	cancel  context.CancelFunc // ends the dialling
	conn    net.Conn           // nil while dialling
	out     []byte             // frames to be written
	wake    chan struct{}      // out is not empty, or err is set; capacity 1
	waiting idSet
	left    int           // replies that may still come to queries that no longer wait
	served  bool          // a reply has come
	heard   time.Time     // when something was last read
	doubted bool          // a reply did not come: it gets no new query if there is another connection
	since   time.Time     // idle since, by the system's clock
	until   time.Time     // end of the idle time, by the pool's clock
	keep    time.Duration // how long the peer keeps it, RFC 7828; negative: unknown
	err     error         // why it was closed; nil: it is open
}

// send registers q on a connection and queues it to be written. fresh requests a new
// connection.
func (cs *conns) send(q *query, now time.Time, fresh bool) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.choose(fresh)
	if c == nil {
		c = cs.open(now)
	} else {
		cs.server.metrics.conn(cs.server.proto(), true)
	}
	if err := c.waiting.add(q); err != nil {
		return err
	}
	q.via, q.reused = c, c.served
	before := len(c.out)
	c.out = q.pack(c.out)
	if cs.server.pool.cfg.Tap != nil {
		q.tap(c.conn, time.Time{}, c.out[before+2:])
	}
	c.signal()
	return nil
}

// choose returns the idle connection used last, or nil for a new one. At the limit
// of connections, it returns the one with the fewest queries. cs.mu is held.
func (cs *conns) choose(fresh bool) *stream {
	now := cs.server.pool.cfg.Now()
	for !fresh && len(cs.idle) > 0 {
		c := cs.idle[len(cs.idle)-1]
		if c.until.After(now) {
			cs.idle = cs.idle[:len(cs.idle)-1]
			return c
		}
		cs.close(c, net.ErrClosed)
	}
	if len(cs.all) < cs.server.pool.share.Load().Conns {
		return nil
	}
	if len(cs.idle) > 0 {
		cs.close(cs.idle[0], net.ErrClosed)
		return nil
	}
	least := cs.all[0]
	for _, c := range cs.all[1:] {
		if c.doubted != least.doubted && least.doubted || c.doubted == least.doubted && len(c.waiting) < len(least.waiting) {
			least = c
		}
	}
	return least
}

// open starts a new connection; cs.mu is held.
func (cs *conns) open(now time.Time) *stream {
	cs.server.metrics.conn(cs.server.proto(), false)
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(cs.server.pool.cfg.AttemptTimeout))
	c := &stream{set: cs, cancel: cancel, wake: make(chan struct{}, 1), waiting: make(idSet), keep: -1}
	cs.all = append(cs.all, c)
	go c.run(ctx)
	return c
}

// signal wakes run. It never blocks.
func (c *stream) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// release ends the wait of q. A connection that did not bring the reply gets no more
// queries. One that brought no reply at all is closed.
func (c *stream) release(q *query, answered bool) {
	now, cs := time.Now(), c.set
	cs.mu.Lock()
	defer cs.mu.Unlock()
	q.via = nil
	if c.err != nil {
		return
	}
	delete(c.waiting, q.id)
	if !answered {
		c.doubted = true
		c.left++
		if c.heard.Before(q.sent) && now.Sub(q.sent) >= lostAfter {
			cs.close(c, os.ErrDeadlineExceeded)
			return
		}
	}
	if len(c.waiting) == 0 {
		cs.keep(c, now)
	}
}

// keep keeps c, on which no query waits, as long as both nodens and the peer allow.
// cs.mu is held.
func (cs *conns) keep(c *stream, now time.Time) {
	keep := cs.server.pool.cfg.Expire
	if c.keep >= 0 {
		keep = min(keep, c.keep)
	}
	if keep == 0 || c.doubted || cs.closed {
		cs.close(c, net.ErrClosed)
		return
	}
	c.since, c.until = now, cs.server.pool.cfg.Now().Add(keep)
	cs.idle = append(cs.idle, c)
	if len(cs.idle) == 1 {
		cs.server.pool.wakeRun()
	}
}

// close closes and removes c; cs.mu is held. Its goroutines fail the queries that
// still wait.
func (cs *conns) close(c *stream, err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.cancel()
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.signal()
	same := func(o *stream) bool { return o == c }
	cs.all = slices.DeleteFunc(cs.all, same)
	cs.idle = slices.DeleteFunc(cs.idle, same)
}

// expire closes the idle connections whose time is over, and returns when the next
// one expires.
func (cs *conns) expire(now time.Time) (next time.Time, left bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range slices.Clone(cs.idle) {
		if !c.until.After(now) {
			cs.close(c, net.ErrClosed)
		} else if !left || c.until.Before(next) {
			next, left = c.until, true
		}
	}
	return next, left
}

// dropOlder closes the connections that have been idle since before t.
func (cs *conns) dropOlder(t time.Time) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range slices.Clone(cs.idle) {
		if c.since.Before(t) {
			cs.close(c, net.ErrClosed)
		}
	}
}

// retire closes all idle connections, and from now on each that becomes idle.
func (cs *conns) retire() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, c := range slices.Clone(cs.idle) {
		cs.close(c, net.ErrClosed)
	}
}

// run dials and then writes the queued frames until the connection is closed. Then
// it fails the queries that still wait.
func (c *stream) run(ctx context.Context) {
	defer c.cancel()
	conn, err := c.set.server.dial(ctx)
	if err == nil && !c.attach(conn) {
		_ = conn.Close()
		err = net.ErrClosed
	}
	if err != nil {
		c.fail(err)
		return
	}
	var reader sync.WaitGroup
	reader.Go(func() { c.fail(c.read()) })
	for err == nil {
		<-c.wake
		var out []byte
		if out, err = c.take(); len(out) > 0 {
			_ = conn.SetWriteDeadline(time.Now().Add(c.set.server.pool.cfg.AttemptTimeout))
			_, err = conn.Write(out)
		}
	}
	c.fail(err)
	reader.Wait()
}

// attach gives c its connection; false if c was closed meanwhile.
func (c *stream) attach(conn net.Conn) bool {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.conn = conn
	return c.err == nil
}

// take returns the frames to be written.
func (c *stream) take() ([]byte, error) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	out := c.out
	c.out = nil
	return out, c.err
}

// fail closes c for err and fails the queries that wait on it.
func (c *stream) fail(err error) {
	c.set.mu.Lock()
	c.set.close(c, err)
	waiting := c.waiting
	c.waiting, err = nil, c.err
	c.set.mu.Unlock()
	for _, q := range waiting {
		q.a.failed(q, err)
	}
}

// read reads replies until the connection fails.
func (c *stream) read() error {
	from, kept := bufio.NewReaderSize(c.conn, streamBuffer), make([]byte, streamBuffer)
	for {
		if _, err := io.ReadFull(from, kept[:2]); err != nil {
			return err
		}
		b := kept
		if n := int(binary.BigEndian.Uint16(kept)); n <= len(kept) {
			b = b[:n]
		} else {
			b = make([]byte, n)
		}
		if _, err := io.ReadFull(from, b); err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
		if err := c.handle(b); err != nil {
			return err
		}
	}
}

// handle gives a reply to the query that waits for it. A reply to no query is an
// error of the peer, because nobody else can write to the connection.
func (c *stream) handle(b []byte) error {
	c.set.mu.Lock()
	c.heard, c.served = time.Now(), true
	var q *query
	if len(b) >= 2 {
		q = c.waiting[binary.BigEndian.Uint16(b)]
	}
	late := q == nil && c.left > 0
	if late {
		c.left--
	}
	c.set.mu.Unlock()
	if late {
		return nil
	}
	v := unasked(b)
	if q != nil {
		m, verdict := q.match(b)
		if verdict == accepted {
			c.learn(m)
			if q.s.pool.cfg.Tap != nil {
				q.tap(c.conn, time.Now(), b)
			}
			q.a.replied(q, m)
			return nil
		}
		v = verdict
	}
	c.set.server.metrics.ignore(v)
	return fmt.Errorf("the reply does not match the query (%s)", v)
}

func (s *server) proto() proto {
	if s.TLS {
		return overTLS
	}
	return overTCP
}

// dial opens a connection to s and, with TLS, makes the handshake.
func (s *server) dial(ctx context.Context) (net.Conn, error) {
	c, err := s.pool.cfg.Dialer.DialContext(ctx, "tcp", s.to)
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

// baseTLS is the base of all servers' TLS configurations: at least TLS 1.2, with
// session resumption.
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
