package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

var (
	errNoSource = errors.New("no directive of the zone answers this name")
	errLoop     = errors.New("forwarding loop: the probe of this zone came back")
	errTimeout  = errors.New("no answer in the time that a client can wait")
	errFailing  = errors.New("upstream has just failed to answer this")
	errPanic    = errors.New("panic, see the log")
	errCut      = errors.New("upstream's answer is truncated, and TCP to it fails")
)

// answer is the result of an exchange.
type answer struct {
	err    error // if not nil, there is no entry
	entry  *cache.Entry
	plugin int    // the source that gave it, index into pluginLabels
	age    uint32 // for Entry.AgeTTLs
	note   ede    // for the reply
}

// begin starts to answer a query that tryHit could not answer. It does not
// block. Actions get a goroutine. Any other query is a cache miss, which takes
// five steps:
//
//  1. join the in-flight query for the same question, or start one;
//  2. ask the zone's sources;
//  3. store the answer, or the failure;
//  4. normalise: see the answer as the zone does;
//  5. reply.
//
// Steps 2 and 3 run once for all jobs that wait for the same answer. A job that
// joins is queued: it holds no goroutine until the answer arrives.
func (j *job) begin() {
	defer j.recoverPanic()
	q, z := &j.q, j.q.zone
	switch {
	case z.Loop != nil && z.Loop.returned(q):
		j.srv.workers.do(func() { j.answer(answer{err: errLoop}) })
	case z.Actions != nil && z.Actions.concern(q):
		j.srv.workers.do(j.act)
	default:
		if x := j.join(); x != nil {
			j.srv.workers.do(x.resolve)
		}
	}
}

// join is step 1: it makes j wait for the answer to its question. It returns nil
// if a query for it is in flight. Then j may be answered and reused at any time.
// Otherwise the caller must resolve the exchange that it returns.
func (j *job) join() *exchange {
	q := &j.q
	if q.tcp && j.srv.knownCut(q) {
		j.srv.workers.do(func() { j.answer(answer{err: errFailing}) })
		return nil
	}
	key := q.inflightKey()
	switch n := q.zone.Normalise; {
	case q.found == cache.Stale:
		j.timer = time.AfterFunc(staleWait, func() { j.answerEarly(key) })
	case n != nil && n.mayAnswerEmpty(q):
		j.timer = time.AfterFunc(emptyWait, func() { j.answerEarly(key) })
	}
	first, raced := j.srv.inflight.join(key, j, q.start)
	if !first {
		return nil
	}
	x := j.srv.newExchange(q)
	x.inflight, x.check = key, raced || q.found == cache.Fresh
	return x
}

// resolve is steps 2 to 5: it gets the answer to x and delivers it to all who
// wait for it.
func (x *exchange) resolve() {
	a := answer{err: errPanic}
	defer func() {
		if p := recover(); p != nil {
			x.srv.reportPanic("asking for "+x.m.Question[0].Name, p)
		}
		waiting := x.srv.inflight.end(x.inflight, x.srv.clock())
		for i, w := range waiting {
			w.deliver(a, i == len(waiting)-1) // 4. and 5.
		}
	}()
	if x.check {
		if known := x.recheck(); known.entry != nil || known.err != nil {
			a = known
			return
		}
	}
	ctx := &deadlineContext{Context: x.srv.ctx, deadline: time.Now().Add(x.srv.timeout)}
	defer ctx.end()
	r, err := x.ask(ctx) // 2.
	a = x.store(r, err)  // 3.
}

// recheck looks x up in the cache. The zero answer means a miss.
func (x *exchange) recheck() answer {
	switch hit := x.zone.peek(x.key, x.srv.clock(), nil); hit.State {
	case cache.Fresh:
		return answer{entry: hit.Entry, plugin: pluginCache, age: hit.Age}
	case cache.Failed:
		return answer{err: errFailing}
	}
	return answer{}
}

// deliver implements waiter: it answers j.
func (j *job) deliver(a answer, mayBlock bool) {
	if !mayBlock && (j.conn != nil || j.q.zone.Normalise != nil) {
		j.srv.workers.do(func() { j.answer(a) })
		return
	}
	j.answer(a)
}

// answer makes the reply to j and sends it. A panic becomes SERVFAIL.
func (j *job) answer(a answer) {
	defer j.recoverPanic()
	if j.timer != nil {
		j.timer.Stop()
	}
	q := &j.q
	if a.err == nil && q.tcp && a.entry.Msg()[2]&(flagTC>>8) != 0 {
		a.err = j.srv.refuseCut(q)
	}
	if a.err != nil {
		reply, o := j.unanswered(a.err)
		j.finish(reply, o)
		return
	}
	v := j.normalise(a.entry)
	if !v.note.set {
		v.note = a.note
	}
	cached := a.plugin == pluginCache
	reply := appendEntry(j.buffer(), q, a.entry, a.age, cached, v)
	o := outcome{rcode: replyRcode(reply), plugin: a.plugin, waited: true, lookup: q.zone.missed, normalised: v.result}
	if cached {
		_, o.lookup = hitKind(cache.Hit{Entry: a.entry, State: cache.Fresh})
	}
	j.finish(reply, o)
}

// staleWait is how long a client waits for a fresh answer if there is an
// expired one for it: the client response timer of RFC 8767 §5.
const staleWait = 1800 * time.Millisecond

// emptyWait is how long a client waits for one address type if it can have
// an empty answer instead, see Server.answersEmpty: less than the 2.5 s after
// which musl retries.
const emptyWait = 2 * time.Second

// answerEarly answers j without waiting for the query in flight any longer, if
// there is an expired answer or an empty one for it.
func (j *job) answerEarly(key string) {
	if (j.q.found == cache.Stale || j.srv.answersEmpty(&j.q)) && j.srv.inflight.leave(key, j) {
		j.answer(answer{err: errTimeout})
	}
}

// normalise is the zone's view of e. If the answer for the other address type
// decides, it waits for that. In observe mode the client does not wait.
func (j *job) normalise(e *cache.Entry) view {
	q, n := &j.q, j.q.zone.Normalise
	if n == nil {
		return asIs(e, notJudged)
	}
	v, done := n.judge(q, e)
	switch {
	case done:
		return n.shown(e, v)
	case n.observe:
		j.observe(e)
		return asIs(e, notJudged)
	}
	begin := j.srv.clock()
	sib, source := j.srv.findSibling(q, e.Rcode() == dns.RcodeNameError)
	q.zone.stats.sibling(source)
	q.zone.stats.siblingWaited(j.srv.clock().Sub(begin))
	return n.verdict(e, sib)
}

// observe judges e in the background, and counts.
func (j *job) observe(e *cache.Entry) {
	q := new(Query)
	j.q.copyTo(q)
	j.lis.jobs.Go(func() {
		sib, source := j.srv.findSibling(q, e.Rcode() == dns.RcodeNameError)
		q.zone.stats.sibling(source)
		q.zone.stats.judged(j.srv.readers, q.qtype, q.zone.Normalise.verdict(e, sib).result)
	})
}

// refresh renews q's answer in the background. A failure leaves the stored
// answer.
func (s *resolver) refresh(q *Query) {
	x := s.newExchange(q)
	x.inflight = q.inflightKey()
	if first, _ := s.inflight.join(x.inflight, &refreshed{x.zone, x.key}, q.start); first {
		q.zone.stats.rest().prefetch.Add(1)
		s.workers.do(x.resolve)
	}
}

// refreshed waits for a new answer for the sake of the cache only.
type refreshed struct {
	zone *boundZone
	key  []byte
}

func (r *refreshed) deliver(answer, bool) { r.zone.Cache.RefreshDone(r.key) }

// unanswered makes the reply to a question that no source answered: an expired
// answer if the zone keeps them for that, or SERVFAIL. It is never REFUSED or
// FORMERR, which musl's resolver treats as no reply.
func (j *job) unanswered(err error) ([]byte, outcome) {
	q, z := &j.q, j.q.zone
	if hit := z.peek(q.key, j.srv.clock(), nil); hit.State == cache.Stale {
		return j.staleReply(hit)
	}
	if j.srv.answersEmpty(q) {
		return appendError(j.buffer(), q, dns.RcodeSuccess, emptyNote()),
			outcome{rcode: dns.RcodeSuccess, waited: true, lookup: z.missed, normalised: repaired}
	}
	return appendError(j.buffer(), q, dns.RcodeServerFailure, failureNote(err)),
		outcome{rcode: dns.RcodeServerFailure, waited: true, lookup: z.missed}
}

// staleReply makes the reply of an expired answer. It looks the other address
// type up in the cache only: upstream has just failed.
func (j *job) staleReply(hit cache.Hit) ([]byte, outcome) {
	q, n := &j.q, j.q.zone.Normalise
	v, done := n.judge(q, hit.Entry)
	if !done {
		v = n.verdict(hit.Entry, q.zone.knownSibling(q, j.srv.clock()))
	}
	o := outcome{plugin: pluginCache, stale: true, waited: true, normalised: v.result}
	v = n.shown(hit.Entry, v).asStale()
	reply := appendEntry(j.buffer(), q, hit.Entry, hit.Age, true, v)
	_, o.lookup = hitKind(hit)
	o.rcode = replyRcode(reply)
	return reply, o
}

// cutKey marks a cache key that stores the failure to get a whole answer. It is
// a bit of the flag byte that no stored answer has.
const cutKey = 0x40

// knownCut reports whether nodens has just failed to get a whole answer to q.
func (s *resolver) knownCut(q *Query) bool {
	return q.zone.peek(q.cutKey(), s.clock(), nil).State == cache.Failed
}

// refuseCut stores that upstream truncates its answer to q and cannot be asked
// over TCP. To a TCP client that is a failure (RFC 9520 §3.2), because there is
// no larger transport to refer it to. UDP clients get the truncated answer.
func (s *resolver) refuseCut(q *Query) error {
	if q.zone.Cache == nil || q.private {
		return errCut
	}
	_, err := q.zone.Cache.PutFailure(q.cutKey(), new(dns.Msg).SetRcode(s.newExchange(q).m, dns.RcodeServerFailure))
	return errors.Join(errCut, err)
}

func (q *Query) cutKey() []byte {
	key := append([]byte(nil), q.key...)
	key[len(key)-1] |= cutKey
	return key
}

// failureNote is the Extended DNS Error for err.
func failureNote(err error) ede {
	var (
		ue *upstream.Error
		ae *action.Error
	)
	switch {
	case errors.As(err, &ae):
		return ede{set: true, code: edeOther, text: ae.Text}
	case errors.As(err, &ue):
		return ede{set: true, code: ue.EDE, text: cutText(ue.Text)}
	case errors.Is(err, errLoop), errors.Is(err, errNoSource), errors.Is(err, errCut):
		return ede{set: true, code: edeOther, text: err.Error()}
	case errors.Is(err, errFailing):
		return ede{set: true, code: edeCachedError}
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return ede{set: true, code: edeNoReachableAuthority}
	}
	return ede{set: true, code: edeOther}
}

// maxEDEText keeps EXTRA-TEXT from crowding a reply, in bytes.
const maxEDEText = 128

// cutText shortens an upstream's EXTRA-TEXT, which is UTF-8 (RFC 8914 §2).
func cutText(s string) string {
	if len(s) <= maxEDEText {
		return s
	}
	return strings.ToValidUTF8(s[:maxEDEText], "")
}
