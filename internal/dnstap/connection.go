package dnstap

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"time"

	pb "github.com/dnstap/golang-dnstap"
	framestream "github.com/farsightsec/golang-framestream"
)

// run connects to the reader and sends the queue until stopped is done. It connects again
// after an error.
func (t *Tap) run(stopped, killed context.Context) {
	defer close(t.done)
	var rest []byte // not sent yet
	defer func() { t.lose(rest) }()
	wait, connected, warned := minBackoff, false, time.Time{}
	for {
		began := time.Now()
		c, err := t.connect(stopped, killed)
		if err == nil {
			if !connected {
				connected = true
				t.cfg.Logger.Info("dnstap reader connected", "reader", t.cfg.Address)
			}
			rest, err = c.serve(stopped, rest)
			c.close(err == nil)
		}
		if stopped.Err() != nil {
			return
		}
		if (connected || warned.IsZero()) && time.Since(warned) > warnInterval {
			connected, warned = false, time.Now()
			t.cfg.Logger.Warn("no connection to the dnstap reader: messages wait in a bounded queue", "reader", t.cfg.Address, "error", err)
		}
		if time.Since(began) > maxBackoff {
			wait = minBackoff
		}
		select {
		case <-stopped.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
}

// connection is a connection to the reader. It counts the bytes that it has sent.
type connection struct {
	net.Conn
	t       *Tap
	frames  *framestream.Writer
	written int
	unwatch func() bool
}

func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written += n
	return n, err
}

// connect opens a connection and negotiates the content type.
func (t *Tap) connect(stopped, killed context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(stopped, writeTimeout)
	defer cancel()
	dial := new(net.Dialer).DialContext
	if t.cfg.TLS != nil {
		dial = (&tls.Dialer{Config: t.cfg.TLS}).DialContext
	}
	conn, err := dial(ctx, t.cfg.Network, t.cfg.Address)
	if err != nil {
		return nil, err
	}
	raw := conn // to close without the wait for TLS's last message
	if c, ok := conn.(*tls.Conn); ok {
		raw = c.NetConn()
	}
	c := &connection{Conn: conn, t: t}
	c.unwatch = context.AfterFunc(killed, func() { _ = raw.Close() })
	c.frames, err = framestream.NewWriter(c, &framestream.WriterOptions{
		ContentTypes: [][]byte{pb.FSContentType}, Bidirectional: true, Timeout: writeTimeout,
	})
	if err != nil {
		c.close(false)
		return nil, err
	}
	return c, nil
}

// close closes c. If properly is true, it first sends STOP and waits until the reader has
// read everything.
func (c *connection) close(properly bool) {
	if properly {
		_ = c.frames.Close()
	}
	_ = c.Conn.Close()
	c.unwatch()
}

// serve sends rest and then the queue, until stopped is done. After an error it returns
// the frames that were not sent.
func (c *connection) serve(stopped context.Context, rest []byte) ([]byte, error) {
	tick := time.NewTicker(recovered)
	defer tick.Stop()
	for {
		out, err := c.send(rest)
		if err != nil {
			return out, err
		}
		select {
		case <-c.t.wake:
			c.gather(stopped)
		case <-tick.C:
			c.t.caughtUp()
		case <-stopped.Done():
			return c.send(c.t.take(nil))
		}
		rest = c.t.take(rest)
	}
}

// gather waits up to flushDelay for more messages, to send them together.
func (c *connection) gather(stopped context.Context) {
	timer := time.NewTimer(flushDelay)
	defer timer.Stop()
	select {
	case <-c.t.wake:
	case <-timer.C:
	case <-stopped.Done():
	}
}

// send writes the frames of b and returns those that were not sent completely. The
// caller may then reuse the memory of b.
func (c *connection) send(b []byte) ([]byte, error) {
	c.written = 0
	var err error
	for at := 0; at < len(b) && err == nil; {
		end := at + 4 + int(binary.BigEndian.Uint32(b[at:]))
		_, err = c.frames.WriteFrame(b[at+4 : end])
		at = end
	}
	if err == nil {
		err = c.frames.Flush()
	}
	sent, n := 0, 0
	for sent < len(b) {
		end := sent + 4 + int(binary.BigEndian.Uint32(b[sent:]))
		if end > c.written {
			break
		}
		sent = end
		n++
	}
	c.t.cfg.Sent.Add(float64(n))
	if sent == len(b) {
		return b[:0], err
	}
	return b[sent:], err
}
