package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// maxTries bounds the queries of one exchange, and triesOfOne those to one server,
// RFC 9520 section 3.1. A query that a server's reply requires (TCP, no OPT record)
// does not count.
const (
	maxTries   = 4
	triesOfOne = 3
)

// Exchange calls Start and waits for the answer, until ctx is done at the latest.
func (p *Pool) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	type result struct {
		m   *dns.Msg
		err error
	}
	done := make(chan result, 2)
	if err := ctx.Err(); err != nil {
		return nil, &Error{EDE: edeOther, Err: err}
	}
	end, _ := ctx.Deadline()
	cancel := p.Start(q, end, func(m *dns.Msg, err error) { done <- result{m, err} })
	select {
	case r := <-done:
		return r.m, r.err
	case <-ctx.Done():
	}
	if cancel != nil && errors.Is(ctx.Err(), context.Canceled) {
		cancel()
		return nil, &Error{EDE: edeOther, Err: fmt.Errorf("forward: %w", ctx.Err())}
	}
	r := <-done // it ends by itself
	return r.m, r.err
}

// Start queries the servers for q until one answers or end is reached. end is at
// most PoolConfig.Timeout from now; zero means that maximum. See the package comment
// for q and the answer.
//
// done is called with the answer or with the error. The error comes shortly before end,
// so that clients get it in time. If an answer comes after the error, until end or in
// an outage, done is called again with it. done must not block. It may be called before
// Start returns; otherwise it is called on a goroutine of the package, without locks.
// cancel ends the exchange. done is not called after that, but a call may still be
// running. A cancelled query without a reply is no failure of its server.
//
// A nil error means rcode NOERROR, NXDOMAIN or YXDOMAIN. After any other rcode, and
// after a reply that looks like a lame server's referral, the next server is
// queried. The referral is returned if no server sends a better reply.
//
// A second query goes out while the first one still waits: after the time in which
// most replies come if the hedge budget allows, and at the latest when the first
// query is probably lost. It goes to the next server of the policy. With sequential
// or a single server, it goes to the same server in another form. The first answer
// to any of the queries wins.
//
// The answer has TC set if it came over UDP and the query over TCP failed. It
// must not be cached then.
//
// cancel is nil if q was refused.
func (p *Pool) Start(q *dns.Msg, end time.Time, done func(*dns.Msg, error)) (cancel func()) {
	question, err := newQuestion(q)
	if err != nil {
		err = &Error{EDE: edeOther, Err: err}
	} else {
		err = p.admit(question.Name)
	}
	if err != nil {
		done(nil, err)
		return nil
	}
	a := &attempt{pool: p, question: question, end: time.Now().Add(p.cfg.Timeout), done: done}
	a.timer.due = a.due
	if !end.IsZero() && end.Before(a.end) {
		a.end = end
	}
	a.report = a.end.Add(-time.Until(a.end) / reportShare)
	a.alive, a.dead = p.plan()
	a.mu.Lock()
	defer a.unlock()
	a.ask(time.Now())
	return a.cancel
}

// attempt is the state of one exchange. Its events are start, replied, failed,
// due, resume and cancel.
type attempt struct {
	pool   *Pool
	report time.Time // when the error is reported if there is no answer
	end    time.Time // until then an answer is taken
	*question
	timer timer
	place int // in outage.waiting, from 1; 0: not there; guarded by outage.mu

	mu   sync.Mutex
	done func(*dns.Msg, error) // nil: called already, or cancelled
	over bool                  // nothing more is sent
	tryList
	next      time.Time // when the next query is sent
	racing    bool      // a query was not answered in time: next is for a repeat
	probe     bool      // this is a health probe: one query, in no statistics
	cancelled bool
	waits     bool // for the end of an outage
	trial     bool // sent during an outage
	early     bool // err is reported before the end
	reported  bool // done was called with err
	closing   bool // report is reached: nothing more is sent
	watched   *query

	lame *dns.Msg // a referral, in case no better reply comes
	m    *dns.Msg // the result
	err  *Error
	edes []dns.EDNS0_EDE
}

// admit counts an exchange about name. It returns an error if name is for other sources
// or a limit is reached.
func (p *Pool) admit(name string) (err error) {
	below := dns.CountLabel(name) > dns.CountLabel(p.cfg.From) // From itself is not subject to Except
	excepted := func(e string) bool { return dns.IsSubDomain(e, name) }
	if !dns.IsSubDomain(p.cfg.From, name) || below && slices.ContainsFunc(p.cfg.Except, excepted) {
		return ErrNotMine
	}
	n := p.active.Add(1)
	if limit := int64(p.cfg.MaxConcurrent); limit > 0 && n > limit {
		p.cfg.Metrics.rejected.Inc()
		err = ErrOverloaded
	} else if n > int64(p.bounds.Load().Pending) {
		err = ErrOverloaded
	}
	if err != nil {
		p.active.Add(-1)
		return &Error{EDE: edeOther, Text: err.Error(), Err: err}
	}
	return nil
}

// reportShare sets the time that an exchange keeps for late answers after it has
// reported its error: its whole time / reportShare, 100 ms of 4 s.
const reportShare = 40

// unlock ends an event. It sets the timer for when there is something to do, and calls
// done if there is a result.
func (a *attempt) unlock() {
	if !a.over {
		at := a.end
		if !a.closing && !a.probe {
			at = a.report
		}
		if !a.waits && a.next.Before(at) {
			at = a.next
		}
		for _, q := range a.tries[:a.tried] {
			if !q.hasResult && q.late.Before(at) {
				at = q.late
			}
		}
		a.pool.timers.set(&a.timer, at)
	}
	done, m, err := a.done, a.m, a.err
	if a.over {
		a.done = nil
	}
	if done == nil || m == nil && (a.reported || !a.over && !a.early) {
		a.mu.Unlock()
		return
	}
	a.reported = true
	a.mu.Unlock()
	if m != nil {
		done(m, nil)
	} else {
		done(nil, err)
	}
}

// ask queries the next server. If there is none and no reply can come any more, it
// ends the exchange.
func (a *attempt) ask(now time.Time) {
	a.next = a.end
	if a.pool.down.Load() && a.mayNotSend(now) {
		return
	}
	for s := a.pick(); s != nil; s = a.pick() {
		if a.query(s, now, false) {
			return
		}
	}
	if !a.anyPending() || a.responded {
		a.fail()
		return
	}
	if a.probe { // the probe has failed, but a late reply still counts
		a.early, a.err = true, a.failure()
	}
}

// mayNotSend reports whether the outage prevents sending a.
func (a *attempt) mayNotSend(now time.Time) bool {
	if a.over || a.waits || a.trial || a.probe {
		return a.over || a.waits
	}
	a.pool.outage.enter(a, now)
	if a.trial {
		return false
	}
	if !a.waits && a.tried == 0 {
		a.finish(nil, a.pool.downError)
	} else if !a.waits && !a.anyPending() {
		a.fail()
	}
	return true
}

// resume sends a after it waited in an outage: as a trial, or because the outage has
// ended.
func (a *attempt) resume(trial bool) {
	a.mu.Lock()
	defer a.unlock()
	a.waits, a.trial = false, trial
	now := time.Now()
	switch {
	case a.over:
	case !a.inFlight():
		a.ask(now)
	default:
		a.another(now)
	}
}

// query sends a query to s and reports whether that succeeded. hedge means that the
// previous query is late, but probably not lost.
func (a *attempt) query(s *server, now time.Time, hedge bool) bool {
	if a.tried == maxTries || a.probe && a.tried > 0 || a.closing || !now.Before(a.end) {
		return false
	}
	q := &query{question: a.question, a: a, s: s, started: now}
	q.shape(hedge)
	if !a.probe {
		s.metrics.requests.Inc()
	}
	fresh := a.asked(s) > 0
	a.tries[a.tried] = q
	a.tried++
	if err := a.send(q, now, fresh); err != nil {
		a.setFailed(q, err)
		return false
	}
	return true
}

// send sends q over its transport and sets when the next query is sent if no reply comes.
// fresh requests a new connection.
func (a *attempt) send(q *query, now time.Time, fresh bool) error {
	// Without a reply until then, q counts as failed: later if most replies take longer.
	cfg := &a.pool.cfg
	wait := max(cfg.AttemptTimeout, min(time.Duration(q.s.rtt.p95.Load())*5/4, cfg.Timeout))
	if a.probe {
		wait = min(cfg.AttemptTimeout, probeTimeout)
	}
	q.sent, q.late = now, now.Add(wait)
	var err error
	if q.stream {
		err = q.s.conns.send(q, now, fresh)
	} else {
		err = q.s.ports.send(q, now)
	}
	if err != nil {
		return err
	}
	switch {
	case cfg.NoHedge || a.probe:
		a.next = a.end
	case a.racing || q.stream && !q.reused:
		a.racing = true
		a.next = now.Add(a.pool.repeatAfter(q.s, a.tried))
	default:
		a.next = now.Add(a.pool.hedgeAfter(q.s, q.size > 0 && !q.stream))
	}
	return nil
}

// due handles the timer: a query without a reply, the next query, or the end.
func (a *attempt) due() {
	a.mu.Lock()
	defer a.unlock()
	now := time.Now()
	if a.over {
		a.unwatch(true)
		return
	}
	if !now.Before(a.end) {
		a.fail()
		return
	}
	for _, q := range a.tries[:a.tried] {
		if !q.hasResult && !now.Before(q.late) {
			a.timedOut(q)
		}
	}
	if !a.closing && !a.probe && !now.Before(a.report) {
		a.close()
	}
	if !a.over && !a.waits && a.inFlight() && !now.Before(a.next) {
		a.another(now)
	}
	if !a.over && !a.waits && !a.inFlight() {
		a.ask(now)
	}
}

// close reports the error. An answer that comes before the end still counts.
func (a *attempt) close() {
	a.closing = true
	if !a.anyPending() || a.lame != nil {
		a.fail()
		return
	}
	for _, q := range a.tries[:a.tried] {
		if !q.hasResult {
			a.timedOut(q)
		}
	}
	if !a.over && !a.early {
		a.early, a.err = true, a.failure()
	}
}

// timedOut counts q as failed, because it got no reply in time. q stays pending, so
// that a late reply still counts.
func (a *attempt) timedOut(q *query) {
	if q.cut == nil {
		a.setFailed(q, os.ErrDeadlineExceeded)
		return
	}
	q.s.metrics.truncated.Inc()
	a.takeReply(q, q.cut)
}

// queryFailed ends q with err or, if q followed a truncated reply, with that reply.
func (a *attempt) queryFailed(q *query, err error) {
	if q.cut != nil {
		q.s.metrics.truncated.Inc()
		a.takeReply(q, q.cut)
		return
	}
	a.setFailed(q, err)
	if !a.inFlight() {
		a.ask(time.Now())
	}
}

// replied handles the reply m to q.
func (a *attempt) replied(q *query, m *dns.Msg) {
	a.mu.Lock()
	defer a.unlock()
	now := time.Now()
	if q.via == nil {
		return
	}
	q.via.release(q, true)
	kind := kindOf(m)
	a.pool.heard(q, m, kind, now)
	if a.over {
		a.unwatch(false)
		return
	}
	a.pool.hedges.earn()
	if q.size > 0 && kind == replyDenies {
		q.denied = true
		if !a.probe {
			q.s.metrics.requests.Inc()
		}
		a.resend(q, q.stream, 0, false)
		return
	}
	if q.denied && m.Rcode != dns.RcodeFormatError && m.Rcode != dns.RcodeNotImplemented {
		q.s.edns.rejected(a.pool.cfg.Now())
	}
	if m.Truncated && !q.stream {
		q.cut = m // better than none
		a.resend(q, true, q.size, false)
		return
	}
	if q.cut != nil && kind >= replyFails {
		q.s.metrics.truncated.Inc()
		m = q.cut
	}
	a.takeReply(q, m)
}

// resend replaces q, which no longer waits, with a query to the same server in
// another form.
func (a *attempt) resend(q *query, stream bool, size uint16, fresh bool) {
	now := time.Now()
	n := &query{
		question: q.question, a: a, s: q.s, stream: stream, size: size,
		started: q.started, denied: q.denied, cut: q.cut, renewed: q.renewed || fresh,
	}
	for i := range a.tries {
		if a.tries[i] == q {
			a.tries[i] = n
		}
	}
	a.racing = true
	if err := a.send(n, now, fresh); err != nil {
		a.queryFailed(n, err)
	}
}

// failed handles an error of the port or connection on which q waits.
func (a *attempt) failed(q *query, err error) {
	a.mu.Lock()
	defer a.unlock()
	if q.via == nil {
		return
	}
	q.via.release(q, false)
	switch {
	case a.over:
		a.unwatch(false)
	case q.hasResult && a.inFlight():
	case q.hasResult:
		a.ask(time.Now())
	case q.reused && !q.renewed && !isTimeout(err):
		a.resend(q, q.stream, q.size, true)
	default:
		a.queryFailed(q, err)
	}
}

// takeReply makes m the result of q. If m is no answer, it queries the next server.
// Otherwise the exchange ends, and takeReply marks the servers that have not replied
// as suspects.
func (a *attempt) takeReply(q *query, m *dns.Msg) {
	q.hasResult, q.err, q.rcode = true, nil, m.Rcode
	if !a.probe { // probeOnce counts it
		q.s.metrics.response(m.Rcode, time.Since(q.started))
	}
	edes := q.restore(m)
	if kind := kindOf(m); kind != replyAnswers && !a.probe {
		a.responded = true
		if kind == replyLame {
			a.lame = m
		} else {
			a.edes = append(a.edes, edes...)
		}
		if !a.inFlight() {
			a.ask(time.Now())
		}
		return
	}
	for _, o := range a.tries[:a.tried] {
		if o == q || o.hasResult {
			continue
		}
		if o.reused {
			o.s.conns.dropOlder(o.started) // they are probably dead too
		}
		if o.s != q.s {
			a.pool.suspect(o.s)
		}
	}
	if q.size == 0 {
		a.watch(q)
	}
	a.finish(m, nil)
}

// setFailed records that q failed with err, and updates the health of its server. A
// missing reply proves nothing if the query was cancelled or had little time.
func (a *attempt) setFailed(q *query, err error) {
	timeout, late := isTimeout(err), q.hasResult
	q.hasResult, q.err = true, err
	if timeout && !late {
		a.silent = append(a.silent, q.s)
	}
	switch {
	case a.probe: // probeOnce counts it
	case q.stream && !q.s.TLS && !a.pool.cfg.ForceTCP: // only the earlier queries over UDP count
	case isOurs(err), a.cancelled, timeout && time.Since(q.started) < a.pool.cfg.AttemptTimeout/2:
	default:
		a.pool.failed(q.s, err, q.started)
	}
}

// fail ends the exchange without an answer.
func (a *attempt) fail() {
	for _, q := range a.tries[:a.tried] {
		if q.hasResult {
			continue
		}
		a.timedOut(q)
		if a.over {
			return
		}
	}
	if a.lame != nil {
		a.finish(a.lame, nil)
		return
	}
	a.finish(nil, a.failure())
}

// finish ends the exchange with a result and releases what it holds.
func (a *attempt) finish(m *dns.Msg, err *Error) {
	if a.over {
		return
	}
	a.over, a.m, a.err = true, m, err
	for _, q := range a.tries[:a.tried] {
		if q != a.watched && q.via != nil {
			q.via.release(q, false)
		}
	}
	if a.waits {
		a.pool.outage.leave(a)
	}
	if a.watched == nil {
		a.pool.timers.set(&a.timer, time.Time{})
	}
	if !a.probe {
		a.pool.active.Add(-1)
	}
}

// watch keeps a query with an OPT record pending if its server answered only winner,
// which has none. A late reply to the pending query shows that the server supports
// EDNS.
func (a *attempt) watch(winner *query) {
	if winner.denied || a.probe {
		return
	}
	for _, q := range a.tries[:a.tried] {
		if q.s == winner.s && q.size > 0 && !q.stream && q.via != nil && q.s.edns.watch(a.pool.cfg.Now()) {
			a.watched = q
			a.pool.timers.set(&a.timer, q.sent.Add(dropsAfter))
			return
		}
	}
}

// unwatch ends watch.
func (a *attempt) unwatch(silent bool) {
	q := a.watched
	if q == nil {
		return
	}
	a.watched = nil
	if q.via != nil {
		q.via.release(q, false)
	}
	q.s.edns.unwatch(a.pool.cfg.Now(), q.sent, silent)
	a.pool.timers.set(&a.timer, time.Time{})
}

// cancel ends the exchange, unless it has ended. done is not called any more.
func (a *attempt) cancel() {
	a.mu.Lock()
	defer a.unlock()
	if a.over || a.done == nil {
		return
	}
	a.done, a.cancelled = nil, true
	a.fail()
}

// failure makes the error from the results of all queries.
func (a *attempt) failure() *Error {
	e := &Error{Upstream: a.edes}
	var errs []error
	network := false
	for _, q := range a.tries[:a.tried] {
		err := q.err
		if err == nil {
			e.Rcode = q.rcode
			err = errors.New(rcodeLabel(q.rcode))
		} else if !isTimeout(err) {
			network = true
		}
		errs = append(errs, fmt.Errorf("%s: %w", q.s.name(), err))
	}
	switch {
	case len(e.Upstream) > 0:
		e.EDE, e.Text = e.Upstream[0].InfoCode, e.Upstream[0].ExtraText
	case a.responded:
		e.EDE, e.Text = edeOther, "upstream answered "+rcodeLabel(e.Rcode)
	case network:
		e.EDE = edeNetworkError
	case len(errs) > 0:
		e.EDE = edeNoReachableAuthority
	case a.waits:
		return a.pool.downError
	default:
		e.EDE = edeNotReady
		errs = append(errs, errors.New("no upstream is configured"))
	}
	e.Err = fmt.Errorf("forward %q type %s: %w", a.Name, dns.Type(a.Qtype), errors.Join(errs...))
	return e
}

// plan returns the servers in the order of the policy, live and dead ones separately. If
// all are dead, the health check is probably wrong, and plan returns all as alive.
func (p *Pool) plan() (alive, dead []*server) {
	all := slices.Clone(*p.servers.Load())
	switch p.cfg.Policy {
	case PolicyRandom:
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	case PolicyRoundRobin:
		first := int((p.turns.Add(1) - 1) % uint32(max(len(all), 1)))
		all = slices.Concat(all[first:], all[:first])
	}
	alive = all[:0]
	for _, s := range all {
		if s.dead.Load() {
			dead = append(dead, s)
		} else {
			alive = append(alive, s)
		}
	}
	if len(alive) == 0 && len(dead) > 0 {
		p.cfg.Metrics.healthBroken.Inc()
		return dead, nil
	}
	return alive, dead
}
