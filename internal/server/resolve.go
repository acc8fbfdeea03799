package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

var (
	errNoSource  = errors.New("no directive of the zone answers this name")
	errLoop      = errors.New("forwarding loop: the probe of this zone came back")
	errTimeout   = errors.New("no answer in the time that a client can wait")
	errFailing   = errors.New("upstream has just failed to answer this")
	errPanic     = errors.New("panic, see the log")
	errShutdown  = errors.New("nodens is shutting down")
	errTruncated = errors.New("upstream's answer is truncated, and TCP to it fails")
)

// answer is the result of an exchange.
type answer struct {
	err    error // if not nil, there is no entry
	entry  *cache.Entry
	plugin int    // the source that gave it, index into pluginLabels
	age    uint32 // for Entry.AgeTTLs
	note   ede    // for the reply
	cut    bool   // it follows from a cut
}

// start starts to answer a query that tryHit could not answer. j has a slot, and the
// drain of l waits for it. start does not block. Actions get a goroutine. Any other query
// is a cache miss, which takes five steps:
//
//  1. join the in-flight query for the same question, or start one;
//  2. query the zone's sources;
//  3. store the answer, or the failure;
//  4. normalise: apply the zone's view of the answer;
//  5. reply.
//
// Steps 2 and 3 run once for all jobs that wait for the same answer. A job that
// waits is queued on the exchange and holds no goroutine.
func (j *job) start(l *listener) {
	j.lis = l
	l.jobs.Add(1)
	defer j.recoverPanic()
	q, z := &j.q, j.q.zone
	switch {
	case z.Loop != nil && z.Loop.returned(q):
		j.deliver(answer{err: errLoop})
	case z.Actions != nil && z.Actions.concern(q):
		j.act()
	default:
		j.miss()
	}
}

// miss makes j wait for the answer to its question and starts an exchange if none is
// in flight. After that, j may be answered and reused at any time.
func (j *job) miss() {
	q := &j.q
	if q.tcp && j.srv.knownTruncated(q) {
		j.deliver(answer{err: errFailing})
		return
	}
	if q.zone.Cut != nil && j.waitForCut() {
		return
	}
	key, s := q.inflightKey(), j.srv
	empty := q.zone.Normalise != nil && q.zone.Normalise.mayAnswerEmpty(q)
	both := empty && q.qtype == dns.TypeA
	if q.found == cache.Stale || empty {
		wait := emptyWait
		if q.found == cache.Stale {
			wait = staleWait
		}
		j.timer = time.AfterFunc(wait, func() { j.answerEarly(key) })
	}
	x, err := s.inflight.join(key, j, q.start, func(x *exchange) error {
		x.check = x.check || q.found == cache.Fresh
		x.fill(s, q)
		return nil
	})
	if err != nil {
		j.deliver(answer{err: err})
	}
	if x == nil {
		return
	}
	if both { // then j has a timer, so it is not reused
		s.askSibling(q)
	}
	x.run()
}

// deliver implements waiter: it makes the reply to j and sends it, or makes j wait for
// the answer for the other address type. If j waits for that, a is that answer. A
// panic becomes SERVFAIL.
func (j *job) deliver(a answer) {
	if j.sibling != nil {
		j.siblingKnown(a)
		return
	}
	defer j.recoverPanic()
	if j.timer != nil {
		j.timer.Stop()
	}
	q := &j.q
	if a.err == nil && q.tcp && a.entry.Msg()[2]&(flagTC>>8) != 0 {
		a.err = j.srv.refuseTruncated(q)
	}
	if a.err != nil {
		reply, o := j.srv.unanswered(j.buffer(), q, a.err)
		j.finish(reply, o)
		return
	}
	v, known := asIs(a.entry, notJudged), true
	if q.zone.Normalise != nil {
		v, known = j.normalise(a)
	}
	if known {
		j.reply(a, v)
	}
}

// reply ends j with the answer a as v presents it.
func (j *job) reply(a answer, v view) {
	if !v.note.set {
		v.note = a.note
	}
	cached := a.plugin == pluginCache
	reply := appendEntry(j.buffer(), &j.q, a.entry, a.age, cached, v)
	o := outcome{plugin: a.plugin, waited: true, lookup: j.q.zone.missed, normalised: v.result, cut: a.cut}
	if cached {
		o.lookup = hitKind(cache.Hit{Entry: a.entry, State: cache.Fresh})
	}
	j.finish(reply, o)
}

// staleWait is how long a client waits for a fresh answer if there is an expired
// one: the client response timer of RFC 8767 §5.
const staleWait = 1800 * time.Millisecond

// emptyWait is how long a client waits for one address type if it can get an empty
// answer instead, see answersEmpty. It is less than the 2.5 s after which musl
// retries.
const emptyWait = 2 * time.Second

// answerEarly answers j before the query in flight ends, if there is an expired
// answer or an empty one. That query continues (RFC 8767 §5) and takes a slot.
func (j *job) answerEarly(key string) {
	if j.q.found != cache.Stale && !j.srv.answersEmpty(&j.q) {
		return
	}
	if j.srv.inflight.leave(key, j, j.srv.charge) {
		j.deliver(answer{err: errTimeout})
	}
}

// charge gives x a slot, because x continues without the client that started it.
func (s *resolver) charge(x *exchange) { s.misses.charge(x.zone, x.client.Addr()) }

// abandon drops j, whose client has disconnected.
func (j *job) abandon() {
	if inner := j.asks.Load(); inner != nil {
		inner.abandon() // which drops j, too
		return
	}
	left, cancelled := j.srv.inflight.abandon(j.q.inflightKey(), j, j.srv.charge)
	if !left && j.q.zone.Normalise != nil {
		var other Query
		left, cancelled = j.srv.inflight.abandon(j.q.siblingQuery(&other).inflightKey(), j, j.srv.charge)
	}
	if cancelled != nil && cancelled.charged {
		j.srv.misses.release(cancelled.zone, cancelled.client.Addr(), cancelled.kind)
	}
	if left {
		j.finish(nil, outcome{dropped: true})
	}
}

// refresh renews q's answer in the background. A failure leaves the stored
// answer.
func (s *resolver) refresh(q *Query) {
	if s.background(q, &refreshed{zone: q.zone, key: bytes.Clone(q.key)}) {
		q.zone.stats.rest().prefetch.Add(1)
	}
}

// background starts an exchange for q that no client waits for, and reports
// whether it did. It takes a slot. w, if not nil, gets the answer in any case.
func (s *resolver) background(q *Query, w waiter) bool {
	x, err := s.inflight.join(q.inflightKey(), w, q.start, func(x *exchange) error {
		if err := s.misses.acquire(q.zone, q.client.Addr(), forItself); err != nil {
			return err
		}
		x.charged, x.kind = true, forItself
		x.fill(s, q)
		return nil
	})
	if err != nil && w != nil {
		w.deliver(answer{err: err})
	}
	if x == nil {
		return false
	}
	x.run()
	return true
}

// refreshed waits for a new answer that only the cache needs.
type refreshed struct {
	queued int // see waiter.place
	zone   *boundZone
	key    []byte
}

func (r *refreshed) place() *int { return &r.queued }

func (r *refreshed) deliver(answer) { r.zone.Cache.RefreshDone(r.key) }

// unanswered makes the reply to a question that no source answered: an expired
// answer if the zone serves those, else SERVFAIL. It is never REFUSED or FORMERR,
// which musl's resolver treats as no reply.
func (s *resolver) unanswered(dst []byte, q *Query, err error) ([]byte, outcome) {
	z := q.zone
	if hit := z.peek(q.key, s.clock(), nil); hit.State == cache.Stale {
		return s.staleReply(dst, q, hit)
	}
	if z.Cut != nil {
		if hit, _ := z.below(q.key, s.clock(), nil); hit.State == cache.Stale {
			reply, o := denyBelow(dst, q, hit)
			o.waited = true
			return reply, o
		}
	}
	if s.answersEmpty(q) {
		return appendError(dst, q, dns.RcodeSuccess, emptyNote()),
			outcome{waited: true, lookup: z.missed, normalised: repaired}
	}
	return appendError(dst, q, dns.RcodeServerFailure, failureNote(err)),
		outcome{waited: true, lookup: z.missed}
}

// staleReply makes the reply of an expired answer. It looks the other address
// type up in the cache only: upstream has just failed.
func (s *resolver) staleReply(dst []byte, q *Query, hit cache.Hit) ([]byte, outcome) {
	n := q.zone.Normalise
	v, done := n.judge(q, hit.Entry)
	if !done {
		v = n.verdict(hit.Entry, q.zone.knownSibling(q, s.clock()))
	}
	o := outcome{plugin: pluginCache, stale: true, waited: true, normalised: v.result}
	v = n.shown(hit.Entry, v).asStale()
	reply := appendEntry(dst, q, hit.Entry, hit.Age, true, v)
	o.lookup = hitKind(hit)
	return reply, o
}

// truncatedKey marks a cache key that stores the failure to get a whole answer. It is
// a bit of the flag byte that no stored answer has.
const truncatedKey = 0x40

// knownTruncated reports whether nodens has just failed to get a whole answer to q.
func (s *resolver) knownTruncated(q *Query) bool {
	return q.zone.peek(q.truncatedKey(), s.clock(), nil).State == cache.Failed
}

// refuseTruncated stores that upstream truncates its answer to q and does not answer over
// TCP. To a TCP client that is a failure (RFC 9520 §3.2), because there is no larger
// transport to refer it to. UDP clients get the truncated answer.
func (s *resolver) refuseTruncated(q *Query) error {
	if q.zone.Cache == nil || q.private {
		return errTruncated
	}
	_, err := q.zone.Cache.PutFailure(q.truncatedKey(), new(dns.Msg).SetRcode(new(exchange).fill(s, q).m, dns.RcodeServerFailure))
	return errors.Join(errTruncated, err)
}

func (q *Query) truncatedKey() []byte {
	key := append([]byte(nil), q.key...)
	key[len(key)-1] |= truncatedKey
	return key
}

// failureNote is the Extended DNS Error for err.
func failureNote(err error) ede {
	if r, ok := err.(refusal); ok { // frequent in an overload; errors.As allocates
		return ede{set: true, code: edeNotReady, text: string(r)}
	}
	var (
		ue *upstream.Error
		ae *action.Error
	)
	switch {
	case errors.As(err, &ae):
		return ede{set: true, code: edeOther, text: ae.Text}
	case errors.As(err, &ue):
		return ede{set: true, code: ue.EDE, text: cutText(ue.Text)}
	case errors.Is(err, errLoop), errors.Is(err, errNoSource), errors.Is(err, errTruncated):
		return ede{set: true, code: edeOther, text: err.Error()}
	case errors.Is(err, errFailing):
		return ede{set: true, code: edeCachedError}
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return ede{set: true, code: edeNoReachableAuthority}
	}
	return ede{set: true, code: edeOther}
}

// maxEDEText limits EXTRA-TEXT, in bytes, to leave room for records.
const maxEDEText = 128

// cutText shortens an upstream's EXTRA-TEXT, which is UTF-8 (RFC 8914 §2).
func cutText(s string) string {
	if len(s) <= maxEDEText {
		return s
	}
	return strings.ToValidUTF8(s[:maxEDEText], "")
}

// job is a query being resolved and the destination of its reply. Exactly one of
// sock, conn and inner is set.
type job struct {
	srv     *resolver
	q       Query
	out     *replyBuffer // nil until the reply is made: a waiting job has none
	lis     *listener
	timer   *time.Timer  // ends the wait early; not nil: the job is not reused
	sibling *siblingWait // nil: it waits for its own answer
	queued  int          // see waiter.place

	sock    *udpSocket
	sa      unix.RawSockaddrInet6
	saLen   uint8
	ownName bool // it does not wait for a cut (again)
	ctlLen  uint8
	control *[controlLen]byte // ctlLen bytes of it; may be nil

	conn  *tcpConn
	inner func(reply []byte, o outcome) // for an action, not for a client; called once

	asks atomic.Pointer[job] // the inner job that j, of a connection, waits for
}

// replyBuffer is memory for one reply.
type replyBuffer struct{ b []byte }

func (j *job) place() *int { return &j.queued }

// buffer returns empty memory for the reply.
func (j *job) buffer() []byte {
	if j.out == nil {
		j.out = j.srv.buffers.Get().(*replyBuffer)
	}
	return j.out.b[:0]
}

// reject appends the reply to q if q gets no slot because of err: SERVFAIL, or an
// expired answer. After REFUSED, some resolvers would wait for another server's
// reply.
func (s *resolver) reject(dst []byte, reader int, q *Query, err error) []byte {
	if err == refusedClient {
		s.metrics.clientLimited.Add(1)
	} else {
		s.metrics.missLimited.Add(1)
	}
	reply, o := s.unanswered(dst, q, err)
	o.waited = false
	s.record(reader, q.zone.stats, q, reply, o)
	return reply
}

// finish ends j with its reply. Before it sends the reply, it updates the counters
// and releases the slot, because the client may send its next query as soon as it
// has the reply.
func (j *job) finish(reply []byte, o outcome) {
	s, l, inner := j.srv, j.lis, j.inner
	j.lis, j.inner = nil, nil
	if inner == nil {
		defer l.jobs.Done()
		s.misses.release(j.q.zone, j.q.client.Addr(), forClient)
		if j.conn != nil && !o.dropped {
			reply = j.conn.reserve(&j.q, reply)
		}
		if !o.dropped {
			s.record(s.readers, j.q.zone.stats, &j.q, reply, o)
		}
	}
	switch {
	case inner != nil:
		inner(reply, o)
	case j.conn != nil:
		j.conn.finish(j, reply)
	case !o.dropped && j.sock.reply(j, reply) != nil:
		s.metrics.sendErrors.Add(1)
	}
	if j.out != nil {
		if !o.dropped {
			j.out.b = reply[:0]
		}
		s.buffers.Put(j.out)
		j.out = nil
	}
	if inner == nil && j.timer == nil && j.conn == nil { // else the timer or the connection may still read j
		j.sock, j.sibling, j.q.zone, j.ownName = nil, nil, nil, false
		s.jobs.Put(j)
	}
}

// recoverPanic, deferred, answers j with SERVFAIL after a panic.
func (j *job) recoverPanic() {
	p := recover()
	if p == nil {
		return
	}
	j.srv.reportPanic("resolving "+j.q.presentation(), p)
	if j.lis != nil {
		reply := appendError(nil, &j.q, dns.RcodeServerFailure, ede{})
		j.finish(reply, outcome{})
	}
}

// reportPanic logs the stack of a panic and counts it. The count raises an
// alert.
func (s *resolver) reportPanic(what string, p any) {
	s.metrics.panics.Add(1)
	s.log.Error("panic", "in", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
