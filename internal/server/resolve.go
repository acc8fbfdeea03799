package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/upstream"
)

var (
	errNoSource = errors.New("no directive of the zone answers this name")
	errLoop     = errors.New("forwarding loop: the probe of this zone came back")
	errWaited   = errors.New("no answer in the time that a client can wait")
	errFailing  = errors.New("upstream has just failed to answer this")
	errPanic    = errors.New("panic, see the log")
	errCut      = errors.New("upstream's answer is cut short, and TCP to it fails")
)

// answer is what a flight brings home.
type answer struct {
	entry  *cache.Entry
	plugin int    // of the source that gave it, index into pluginLabels
	age    uint32 // for Entry.AgeTTLs
	note   ede    // for the reply
}

// cached tells that the answer came from the cache after all.
func (a answer) cached() bool { return a.plugin == pluginCache }

// resolve answers what tryHit has left: a question that the zone's actions
// take, or a miss.
func (s *Server) resolve(j *job) ([]byte, outcome) {
	q, z := &j.q, j.q.zone
	if z.Loop.saw(q) {
		return s.unanswered(j, errLoop)
	}
	if z.Actions.take(q) {
		return s.act(j)
	}
	return s.resolveMiss(j)
}

// resolveMiss answers a miss: join the flight of the question or start it,
// which asks the zone's sources and stores what they say; see the answer as the
// zone does; make the reply.
func (s *Server) resolveMiss(j *job) ([]byte, outcome) {
	q, z := &j.q, j.q.zone
	ctx := j.context(s.ctx)
	a, err := s.awaitWhole(ctx, q)
	if err != nil {
		return s.unanswered(j, err)
	}
	v := s.normalise(ctx, j, a.entry)
	if !v.note.set {
		v.note = a.note
	}
	reply := appendEntry(j.out[:0], q, a.entry, a.age, a.cached(), v)
	o := outcome{rcode: replyRcode(reply), plugin: a.plugin, waited: true, lookup: z.missed(), normalised: v.result}
	if a.cached() {
		_, o.lookup = hitKind(cache.Hit{Entry: a.entry, State: cache.Fresh})
	}
	return reply, o
}

// staleWait is how long a client waits for a fresh answer when there is an
// expired one for it: the client response timer of RFC 8767 §5.
const staleWait = 1800 * time.Millisecond

// standInWait is how long a client waits for one address type when it can have
// an empty answer in its place, see Server.standsIn: less than the 2.5 s after
// which musl asks again.
const standInWait = 2 * time.Second

// await waits for the answer to q's question: not too long if there is an
// expired one, or an empty one to stand in.
func (s *Server) await(ctx context.Context, q *Query) (answer, error) {
	wait := s.timeout
	switch {
	case q.zone.peek(q.key, q.start, nil).State == cache.Stale:
		wait = staleWait
	case q.zone.Normalise.mayStandIn(q):
		wait = standInWait
	}
	a, err := s.flyFor(ctx, q, wait)
	if wait == standInWait && errors.Is(err, errWaited) && !s.standsIn(q) {
		return s.flyFor(ctx, q, s.timeout-standInWait)
	}
	return a, err
}

// flyFor is fly with an end to the wait, errWaited; the flight itself goes on.
// A wait as long as the flight needs no goroutine but the caller's.
func (s *Server) flyFor(ctx context.Context, q *Query, wait time.Duration) (answer, error) {
	in := q.inquiry()
	key := in.flightKey()
	if wait >= s.timeout {
		if a, led, err := s.flight.Lead(key, s.landing(in)); led {
			return a, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	a, _, err := s.flight.Do(ctx, key, s.landing(in))
	return a, err
}

// normalise is the zone's view of e, after asking for the sibling if that
// decides. Observing comes after the reply and does not change it.
func (s *Server) normalise(ctx context.Context, j *job, e *cache.Entry) view {
	q, n := &j.q, j.q.zone.Normalise
	v, done := n.judge(q, e)
	switch {
	case done:
		return n.shown(e, v)
	case n.observe:
		s.observe(j, e)
		return asIs(e, notJudged)
	}
	begin := s.clock()
	sib, source := s.findSibling(ctx, q, e.Rcode() == dns.RcodeNameError)
	q.zone.stats.sibling(source)
	q.zone.stats.siblingWaited(s.clock().Sub(begin))
	return n.verdict(e, sib)
}

// observe judges e without keeping the client waiting, and counts.
func (s *Server) observe(j *job, e *cache.Entry) {
	q := new(Query)
	j.q.copyTo(q)
	j.lis.jobs.Go(func() {
		sib, source := s.findSibling(s.ctx, q, e.Rcode() == dns.RcodeNameError)
		q.zone.stats.sibling(source)
		q.zone.stats.judged(s.workers, q.qtype, q.zone.Normalise.verdict(e, sib).result)
	})
}

// fly waits for the answer to q's question with everybody else who asks it.
// shared says that the question was on its way already.
func (s *Server) fly(ctx context.Context, q *Query) (a answer, shared bool, err error) {
	in := q.inquiry()
	return s.flight.Do(ctx, in.flightKey(), s.landing(in))
}

// landing makes the work of a flight.
func (s *Server) landing(in *inquiry) func(context.Context) (answer, error) {
	return func(ctx context.Context) (answer, error) {
		switch hit := in.zone.peek(in.key, s.clock(), nil); hit.State {
		case cache.Fresh: // another flight brought it after the caller had missed it
			return answer{entry: hit.Entry, plugin: pluginCache, age: hit.Age}, nil
		case cache.Failed:
			return answer{}, errFailing
		}
		return s.fetch(ctx, in)
	}
}

// fetch asks the zone's sources and stores the answer, or the failure, unless
// it is only for who asks. That upstream was not asked for want of room says
// nothing of the name: the next who asks may have better luck.
func (s *Server) fetch(ctx context.Context, in *inquiry) (answer, error) {
	z := in.zone
	reply, err := s.askSafely(ctx, in)
	if err != nil {
		z.Errors.write(z.Name, in.m, err)
		if z.Cache != nil && !isPrivate(in.key) && !errors.Is(err, upstream.ErrOverloaded) {
			_, perr := z.Cache.PutFailure(in.key, new(dns.Msg).SetRcode(in.m, dns.RcodeServerFailure))
			err = errors.Join(err, perr)
		}
		return answer{}, err
	}
	a := answer{plugin: reply.plugin, note: reply.note}
	if z.Cache != nil && !isPrivate(in.key) && !reply.private {
		a.entry, err = z.Cache.Put(in.key, reply.Msg)
	} else {
		a.entry, err = cache.NewEntry(reply.Msg)
	}
	return a, err
}

// askSafely turns a panic of a source into an error.
func (s *Server) askSafely(ctx context.Context, in *inquiry) (r sourced, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.tellPanic("asking for "+in.m.Question[0].Name, p)
			err = errPanic
		}
	}()
	return s.ask(ctx, in)
}

// ask asks the zone's sources in order until one takes the question.
func (s *Server) ask(ctx context.Context, in *inquiry) (r sourced, err error) {
	for _, src := range in.zone.Sources {
		if c, ok := src.Source.(clientSource); ok {
			r, err = c.exchangeFor(ctx, s, in)
		} else {
			r.Msg, err = src.Exchange(ctx, in.m)
		}
		if errors.Is(err, upstream.ErrNotMine) {
			continue
		}
		r.plugin = pluginIndex(src.Name)
		return r, err
	}
	return sourced{}, errNoSource
}

// refresh renews q's answer in the background. A failure leaves what is stored.
func (s *Server) refresh(q *Query) {
	in := q.inquiry()
	started := s.flight.Go(in.flightKey(), func(ctx context.Context) (answer, error) {
		defer in.zone.Cache.RefreshDone(in.key)
		return s.fetch(ctx, in)
	})
	if started {
		q.zone.stats.rest().prefetch.Add(1)
	} else {
		in.zone.Cache.RefreshDone(in.key)
	}
}

// unanswered makes the reply of a question that no source answered: an expired
// answer if the zone keeps them for that, or SERVFAIL. Never REFUSED or
// FORMERR, which musl's resolver takes for silence.
func (s *Server) unanswered(j *job, err error) ([]byte, outcome) {
	q, z := &j.q, j.q.zone
	if hit := z.peek(q.key, s.clock(), nil); hit.State == cache.Stale {
		return s.staleReply(j, hit)
	}
	if s.standsIn(q) {
		return appendError(j.out[:0], q, dns.RcodeSuccess, standIn()),
			outcome{rcode: dns.RcodeSuccess, waited: true, lookup: z.missed(), normalised: repaired}
	}
	return appendError(j.out[:0], q, dns.RcodeServerFailure, failureNote(err)),
		outcome{rcode: dns.RcodeServerFailure, waited: true, lookup: z.missed()}
}

// staleReply makes the reply of an expired answer. Its sibling is not asked
// for, only looked for: upstream has just failed.
func (s *Server) staleReply(j *job, hit cache.Hit) ([]byte, outcome) {
	q, n := &j.q, j.q.zone.Normalise
	v, done := n.judge(q, hit.Entry)
	if !done {
		v = n.verdict(hit.Entry, q.zone.knownSibling(q, s.clock()))
	}
	o := outcome{plugin: pluginCache, stale: true, waited: true, normalised: v.result}
	v = n.shown(hit.Entry, v).asStale()
	reply := appendEntry(j.out[:0], q, hit.Entry, hit.Age, true, v)
	_, o.lookup = hitKind(hit)
	o.rcode = replyRcode(reply)
	return reply, o
}

// failureNote is the Extended DNS Error that tells why there is no answer.
func failureNote(err error) ede {
	var ue *upstream.Error
	switch {
	case errors.As(err, &ue):
		return ede{set: true, code: ue.EDE, text: cutText(ue.Text)}
	case errors.Is(err, errLoop), errors.Is(err, errNoSource), errors.Is(err, errCut):
		return ede{set: true, code: edeOther, text: err.Error()}
	case errors.Is(err, errFailing):
		return ede{set: true, code: edeCachedError}
	case errors.Is(err, errWaited), errors.Is(err, context.DeadlineExceeded):
		return ede{set: true, code: edeNoReachableAuthority}
	}
	return ede{set: true, code: edeOther}
}

// maxEDEText keeps EXTRA-TEXT from crowding a reply, in octets.
const maxEDEText = 128

// cutText shortens an upstream's EXTRA-TEXT, which is UTF-8 (RFC 8914 §2).
func cutText(s string) string {
	if len(s) <= maxEDEText {
		return s
	}
	return strings.ToValidUTF8(s[:maxEDEText], "")
}

// missed is how a look-up that ended in a miss is counted.
func (z *Zone) missed() lookup {
	if z.Cache == nil {
		return lookupNone
	}
	return lookupMiss
}
