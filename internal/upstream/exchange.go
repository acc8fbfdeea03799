package upstream

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// maxTries bounds the queries of one Exchange, and triesOfOne those to one
// server, RFC 9520 section 3.1. What a server's own reply asks for, as TCP or
// no OPT record, does not count.
const (
	maxTries   = 4
	triesOfOne = 3
)

// Exchange asks the servers q's question until one answers. See the package
// comment for q and the answer.
//
// A nil error means rcode NOERROR, NXDOMAIN or YXDOMAIN. Every other rcode,
// and a reply that looks like a lame server's referral, makes the next server
// be asked; the referral is returned if nobody knows better.
//
// Silence makes another query go out before the first is given up: after the
// time in which most replies come if the budget for it allows, and at the
// latest when the first is likely to be lost. It goes to the next server of the
// policy, with sequential or a single server to the same one from another port
// or over another connection. Whichever answers first wins.
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
	a := attempt{pool: p, caller: ctx, question: ask, end: time.Now().Add(p.cfg.Timeout)}
	if end, ok := ctx.Deadline(); ok && end.Before(a.end) {
		a.end = end
	}
	return a.run()
}

// attempt is the state of one Exchange.
type attempt struct {
	pool   *Pool
	caller context.Context
	end    time.Time // of all
	*question

	alive, dead []*server // still to be asked, in this order
	silent      []*server // asked, and worth asking again
	asks        [maxTries]*server
	tries       int // of asks, how many are set

	race // once the first query was not answered in time

	winner  *server  // who answered well
	lame    *dns.Msg // a referral, for want of something better
	replied bool     // somebody answered, though not well
	network bool     // an error that was no silence
	err     Error
	errs    []error
}

func (a *attempt) run() (*dns.Msg, error) {
	a.alive, a.dead = a.pool.plan()
	m := a.oneByOne()
	if m == nil && a.flying > 0 {
		m = a.sideBySide()
	}
	a.leave()
	if m == nil {
		m = a.lame
	}
	if m == nil {
		return nil, a.failure()
	}
	a.restore(m)
	return m, nil
}

// oneByOne asks the servers one after the other for as long as each settles its
// query before another one is worth while. Most exchanges end here, without a
// goroutine or a timer of their own. A query that takes longer is left in the
// race.
func (a *attempt) oneByOne() *dns.Msg {
	for a.caller.Err() == nil {
		t := a.launch()
		if t == nil {
			return nil
		}
		m, err := (*dns.Msg)(nil), errPending
		if t.port != nil || t.stream != nil {
			// The wait is too short for the caller to be heard.
			m, err = t.receive(context.Background(), a.pool, a.sooner(time.Now().Add(a.pool.hedgeAfter(t.s)), t.deadline))
		}
		if a.goesOn(t, m, err) {
			a.enter(t, m, err)
			return nil
		}
		if m := a.judge(t, m, err); m != nil {
			return m
		}
	}
	return nil
}

// sooner is the earliest of the times given and the end of all.
func (a *attempt) sooner(times ...time.Time) time.Time {
	until := a.end
	for _, t := range times {
		if t.Before(until) {
			until = t
		}
	}
	return until
}

// goesOn reports whether t has more to do after m or err.
func (a *attempt) goesOn(t *try, m *dns.Msg, err error) bool {
	switch {
	case err == errPending:
		return true
	case err != nil:
		return t.reused && !isTimeout(err)
	}
	return t.q.edns && deniesEDNS(m) || m.Truncated && !t.q.stream
}

// launch prepares the query to the next server; nil if there is nobody to ask
// or no time.
func (a *attempt) launch() *try {
	for {
		s := a.next()
		if s == nil {
			return nil
		}
		if t := a.prepare(s); t != nil {
			return t
		}
	}
}

// prepare prepares a query to s; nil if that cannot be or must not be, or fails.
func (a *attempt) prepare(s *server) *try {
	if a.tries == maxTries || !time.Now().Before(a.end) {
		return nil
	}
	overStream, edns := s.TLS || a.pool.cfg.ForceTCP, s.takesEDNS(a.pool.cfg.Now())
	t, err := a.pool.newTry(s, a.pack(edns, overStream), overStream, a.asked(s) > 0)
	s.metrics.request()
	a.asks[a.tries] = s
	a.tries++
	if err != nil {
		a.judge(t, nil, err)
		return nil
	}
	return t
}

// asked is how many queries s got.
func (a *attempt) asked(s *server) (n int) {
	for _, o := range a.asks[:a.tries] {
		if o == s {
			n++
		}
	}
	return n
}

// next picks the server to ask. Those that seem dead, and those that have been
// silent already, are worth the time only if nobody has replied.
func (a *attempt) next() *server {
	queues := []*[]*server{&a.alive, &a.dead, &a.silent}
	if a.replied {
		queues = queues[:1]
	}
	for _, q := range queues {
		for len(*q) > 0 {
			s := (*q)[0]
			*q = (*q)[1:]
			if a.asked(s) < triesOfOne {
				return s
			}
		}
	}
	return nil
}

// judge takes what became of t and returns its answer; nil if it has none,
// with the reason noted in a.
func (a *attempt) judge(t *try, m *dns.Msg, err error) *dns.Msg {
	t.settled = true
	a.book(t.s, m, err, time.Since(t.started))
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("%s: %w", t.s.name(), err))
		if isTimeout(err) {
			a.silent = append(a.silent, t.s)
		} else {
			a.network = true
		}
		return nil
	}
	edes := takeEDE(m)
	if isAnswer(m.Rcode) && !isLame(m) {
		a.winner = t.s
		return m
	}
	a.replied = true
	if isLame(m) {
		a.lame = m
		return nil
	}
	a.err.Rcode = m.Rcode
	a.err.Upstream = append(a.err.Upstream, edes...)
	a.errs = append(a.errs, fmt.Errorf("%s: %s", t.s.name(), rcodeLabel(m.Rcode)))
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
