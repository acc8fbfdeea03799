package upstream

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/miekg/dns"
)

// maxDatagram is the largest reply read from a UDP socket, in octets: more
// than the udpSize that we ask for, as some servers do not care. A longer one
// is taken for truncated.
const maxDatagram = 4096

// try is one query on its way to one server: a port or a stream, and how far
// it has come. One goroutine at a time works on it.
type try struct {
	s        *server
	q        *query
	port     *port // one of port and stream is set while a query is under way
	stream   *stream
	reused   bool // stream was idle before
	started  time.Time
	sent     time.Time // zero: not yet
	deadline time.Time // of the server's answer, over this transport
	settled  bool      // judged
}

// newTry prepares a query to s over the transport that is due. A stream is
// taken along if an idle one is there and wanted; otherwise work dials one.
func (p *Pool) newTry(s *server, q *query, overStream, fresh bool) (*try, error) {
	now := time.Now()
	t := &try{s: s, q: q, started: now, deadline: now.Add(p.cfg.AttemptTimeout)}
	if !overStream {
		var err error
		t.port, err = p.openPort(s, now)
		return t, err
	}
	if fresh {
		return t, nil
	}
	if t.stream = s.idle.take(p.cfg.Now()); t.stream != nil {
		s.metrics.connHit(s.proto())
		t.reused = true
	}
	return t, nil
}

// openPort takes an idle port or opens one.
func (p *Pool) openPort(s *server, now time.Time) (*port, error) {
	if pt := s.ports.take(now); pt != nil {
		s.metrics.connHit(overUDP)
		return pt, nil
	}
	s.metrics.connMiss(overUDP)
	c, err := p.cfg.Dialer.DialContext(context.Background(), "udp", s.to)
	if err != nil {
		return nil, err
	}
	return newPort(c, now), nil
}

// errPending means that the reply is not there yet, and may still come.
var errPending = errors.New("no reply yet")

// receive sends t's query if that was not done and waits for the reply until
// the given time or until ctx is done. After errPending it may be called again,
// and goes on. Otherwise it gives port or stream back or closes it.
func (t *try) receive(ctx context.Context, p *Pool, until time.Time) (*dns.Msg, error) {
	sent := !t.sent.IsZero()
	if err := t.setDeadlines(until, sent); err != nil {
		t.close()
		return nil, err
	}
	stop := t.obey(ctx)
	var m *dns.Msg
	var err error
	if t.port != nil {
		m, err = t.overPort(p, sent)
	} else {
		m, err = t.stream.read(t.s, t.q, sent)
	}
	switch alone := stop(); {
	case err == nil:
		t.s.metrics.rtt.Store(int64(t.s.rtt.observe(time.Since(t.sent))))
		t.s.heard(m, p.cfg.Now())
		p.hedges.earn()
		if alone {
			t.giveBack(p)
		}
	case errors.Is(err, os.ErrDeadlineExceeded) && alone && until.Before(t.deadline):
		return nil, errPending
	}
	t.close()
	return m, err
}

// setDeadlines makes reading end at until.
func (t *try) setDeadlines(until time.Time, sent bool) error {
	if !sent {
		t.sent = time.Now()
	}
	if t.port != nil {
		return t.port.conn.SetReadDeadline(until)
	}
	if sent {
		return t.stream.SetReadDeadline(until)
	}
	return errors.Join(t.stream.SetWriteDeadline(t.deadline), t.stream.SetReadDeadline(until))
}

// obey makes t give up when ctx is done. stop ends that and reports whether it
// has not happened.
func (t *try) obey(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return undisturbed
	}
	past := time.Unix(1, 0)
	if pt := t.port; pt != nil {
		return context.AfterFunc(ctx, func() { _ = pt.conn.SetReadDeadline(past) })
	}
	c := t.stream
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
}

func undisturbed() bool { return true }

// overPort ignores everything but the reply, RFC 5452 section 9.1.
func (t *try) overPort(p *Pool, sent bool) (*dns.Msg, error) {
	var out []byte
	if !sent {
		out = t.q.datagram()
		t.port.uses++
	}
	buf := p.buffers.Get().(*[maxDatagram]byte)
	defer p.buffers.Put(buf)
	for {
		n, err := t.port.read(out, buf)
		out = nil
		if err != nil {
			if t.port.out != nil {
				t.sent = time.Time{} // the time was over before
			}
			return nil, err
		}
		if n == len(buf) {
			buf[2] |= 0x02 // the rest is lost
		}
		m, v := t.q.match(buf[:n])
		if v == accepted {
			return m, nil
		}
		t.s.metrics.ignore(v)
	}
}

// giveBack keeps what t has brought its answer over.
func (t *try) giveBack(p *Pool) {
	switch {
	case t.port != nil:
		if first := t.s.ports.put(t.port, time.Now()); first {
			p.nudge()
		}
	case t.stream != nil:
		p.keepStream(t.s, t.stream)
	}
	t.port, t.stream = nil, nil
}

// close closes it. A late reply is never read as another's.
func (t *try) close() {
	if t.port != nil {
		_ = t.port.conn.Close()
	}
	if t.stream != nil {
		_ = t.stream.Close()
	}
	t.port, t.stream = nil, nil
}

// work brings t to its end: the reply, over a new stream if an idle one was
// dead, without OPT if that is what the server stumbles over, and over TCP if
// it is truncated. m is t's reply if it is there already.
func (t *try) work(ctx context.Context, p *Pool, m *dns.Msg, err error) (*dns.Msg, error) {
	if m == nil && err == nil {
		m, err = t.await(ctx, p)
	}
	if err != nil && t.reused && !isTimeout(err) && ctx.Err() == nil {
		t.renew()
		m, err = t.await(ctx, p)
	}
	if err == nil && t.q.edns && deniesEDNS(m) {
		t.s.metrics.request()
		if m, err = p.again(ctx, t, t.q.pack(false, t.q.stream), t.q.stream); err == nil &&
			m.Rcode != dns.RcodeFormatError && m.Rcode != dns.RcodeNotImplemented {
			t.s.refusesEDNS(p.cfg.Now())
		}
	}
	if err == nil && m.Truncated && !t.q.stream {
		// The truncated reply is better than none.
		full, serr := p.again(ctx, t, t.q.pack(t.q.edns, true), true)
		if serr == nil && isAnswer(full.Rcode) {
			return full, nil
		}
		t.s.metrics.keptTruncated()
	}
	return m, err
}

// renew makes t's query go over a new stream.
func (t *try) renew() {
	t.close()
	t.reused, t.sent = false, time.Time{}
	t.q = t.q.pack(t.q.edns, true)
}

// again asks t's server another form of t's question.
func (p *Pool) again(ctx context.Context, t *try, q *query, overStream bool) (*dns.Msg, error) {
	next, err := p.newTry(t.s, q, overStream, false)
	if err != nil {
		return nil, err
	}
	return next.work(ctx, p, nil, nil)
}

// await dials if need be and waits for the reply until t's deadline or until
// ctx is done.
func (t *try) await(ctx context.Context, p *Pool) (*dns.Msg, error) {
	if t.port == nil && t.stream == nil {
		dctx, cancel := context.WithDeadline(ctx, t.deadline)
		c, err := p.dial(dctx, t.s)
		cancel()
		if err != nil {
			return nil, err
		}
		t.stream = c
	}
	return t.receive(ctx, p, t.deadline)
}
