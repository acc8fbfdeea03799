package upstream

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// maxTries bounds the tries of one Exchange, RFC 9520 section 3.1.
const maxTries = 3

// Exchange asks the servers q's question, one after the other by the policy,
// until one answers. See the package comment for q and the answer.
//
// A nil error means rcode NOERROR, NXDOMAIN or YXDOMAIN. Every other rcode,
// and a reply that looks like a lame server's referral, makes the next server
// be asked; the referral is returned if nobody knows better. A server that
// stays silent may be asked a second time, because a datagram can get lost.
//
// The answer has TC set if it came over UDP and asking again over TCP failed.
// It must not be cached then.
func (p *Pool) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	ask, err := newQuestion(q)
	if err != nil {
		return nil, &Error{EDE: edeOther, Err: err}
	}
	if !p.covers(ask.Name) {
		return nil, ErrNotMine
	}
	defer p.active.Add(-1)
	if n := p.active.Add(1); p.cfg.MaxConcurrent > 0 && n > int64(p.cfg.MaxConcurrent) {
		p.cfg.Metrics.rejected.Inc()
		return nil, &Error{EDE: edeOther, Text: ErrOverloaded.Error(), Err: ErrOverloaded}
	}
	a := attempt{pool: p, caller: ctx, question: ask}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return a.run(ctx)
}

// attempt is the state of one Exchange.
type attempt struct {
	pool   *Pool
	caller context.Context // without our own time limit
	*question

	alive, dead, silent []*server // still to be asked, in this order

	lame    *dns.Msg // a referral, for want of something better
	replied bool     // somebody answered, though not well
	network bool     // an error that was no silence
	err     Error
	errs    []error
}

func (a *attempt) run(ctx context.Context) (*dns.Msg, error) {
	a.alive, a.dead = a.pool.plan()
	for range maxTries {
		s := a.next()
		if s == nil || ctx.Err() != nil {
			break
		}
		if m := a.try(ctx, s); m != nil {
			a.restore(m)
			return m, nil
		}
	}
	if a.lame != nil {
		a.restore(a.lame)
		return a.lame, nil
	}
	return nil, a.failure()
}

// next picks the server to ask. Those that seem dead, and those that have been
// silent already, are worth the time only if nobody has replied.
func (a *attempt) next() *server {
	queues := []*[]*server{&a.alive, &a.dead, &a.silent}
	if a.replied {
		queues = queues[:1]
	}
	for _, q := range queues {
		if len(*q) > 0 {
			s := (*q)[0]
			*q = (*q)[1:]
			return s
		}
	}
	return nil
}

// try asks s and returns its answer; nil if it has none, with the reason noted
// in a.
func (a *attempt) try(ctx context.Context, s *server) *dns.Msg {
	m, err := a.ask(ctx, s)
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("%s: %w", s.name(), err))
		if isTimeout(err) {
			a.silent = append(a.silent, s)
		} else {
			a.network = true
		}
		return nil
	}
	edes := takeEDE(m)
	if isAnswer(m.Rcode) && !isLame(m) {
		return m
	}
	a.replied = true
	if isLame(m) {
		a.lame = m
		return nil
	}
	a.err.Rcode = m.Rcode
	a.err.Upstream = append(a.err.Upstream, edes...)
	a.errs = append(a.errs, fmt.Errorf("%s: %s", s.name(), rcodeLabel(m.Rcode)))
	return nil
}

// failure sums up what the tries met.
func (a *attempt) failure() *Error {
	e := &a.err
	switch {
	case len(e.Upstream) > 0:
		e.EDE, e.Text = e.Upstream[0].InfoCode, e.Upstream[0].ExtraText
	case a.replied:
		e.EDE, e.Text = edeOther, "upstream answered "+rcodeLabel(e.Rcode)
	case a.network:
		e.EDE = edeNetworkError
	case len(a.errs) > 0:
		e.EDE = edeNoReachableAuthority
	case a.caller.Err() != nil:
		e.EDE = edeOther
		a.errs = append(a.errs, context.Cause(a.caller))
	default:
		e.EDE = edeNotReady
		a.errs = append(a.errs, errors.New("no upstream is configured"))
	}
	e.Err = fmt.Errorf("forward %q type %s: %w", a.Name, dns.Type(a.Qtype), errors.Join(a.errs...))
	return e
}

// ask has one server answer, with an OPT record or, if that is what it
// stumbles over, without, and keeps the books on it.
func (a *attempt) ask(ctx context.Context, s *server) (*dns.Msg, error) {
	start := a.pool.cfg.Now()
	edns := s.takesEDNS(start)
	m, err := a.send(ctx, s, edns)
	if err == nil && edns && deniesEDNS(m) {
		var plain *dns.Msg
		plain, err = a.send(ctx, s, false)
		if err == nil && plain.Rcode != dns.RcodeFormatError && plain.Rcode != dns.RcodeNotImplemented {
			s.refusesEDNS(a.pool.cfg.Now())
		}
		m = plain
	}
	a.book(s, m, err, a.pool.cfg.Now().Sub(start))
	return m, err
}

// isOurs reports whether err is a want of this process or host: it says nothing
// of the server.
func isOurs(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// book counts a try and judges the server by it. The silence of a server that
// the caller gave up on, or that got little time, proves nothing.
func (a *attempt) book(s *server, m *dns.Msg, err error, took time.Duration) {
	switch {
	case err == nil:
		s.metrics.response(m.Rcode, took)
		a.pool.alive(s)
	case isOurs(err), a.caller.Err() != nil, isTimeout(err) && took < a.pool.cfg.AttemptTimeout/2:
	default:
		a.pool.failed(s, err)
	}
}

// send asks s once over the transport that is due: TLS, TCP, or UDP and then
// TCP if the reply is truncated. The truncated reply is better than none.
func (a *attempt) send(ctx context.Context, s *server, edns bool) (*dns.Msg, error) {
	s.metrics.request()
	if s.TLS || a.pool.cfg.ForceTCP {
		return a.pool.overStream(ctx, s, a.question, edns)
	}
	m, err := a.pool.overUDP(ctx, s, a.newQuery(edns))
	if err != nil || !m.Truncated {
		return m, err
	}
	full, err := a.pool.overStream(ctx, s, a.question, edns)
	if err != nil || !isAnswer(full.Rcode) {
		s.metrics.keptTruncated()
		return m, nil
	}
	return full, nil
}
