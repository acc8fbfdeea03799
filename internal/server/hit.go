package server

import (
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// Extended DNS Errors that replies carry, RFC 8914 §4 and RFC 9824 §3.4.
const (
	edeOther                = 0
	edeStaleAnswer          = 3
	edeCachedError          = 13
	edeNotReady             = 14
	edeProhibited           = 18
	edeStaleNXDOMAIN        = 19
	edeNoReachableAuthority = 22
	edeSynthesized          = 29
	edeInvalidQueryType     = 30
)

// tryHit appends the reply to q if it needs no waiting: an answer from the cache, or
// an error. v is the verdict of parse. It returns false if the query must be
// resolved. Then q.zone and q.key are set.
func (s *resolver) tryHit(dst []byte, l *listener, reader int, q *Query, v verdict) ([]byte, bool) {
	table := l.table.Load()
	if table.guarded && s.refusesClient(q) {
		return s.replyUnresolved(appendError(dst, q, dns.RcodeRefused, ede{set: true, code: edeProhibited}), l, reader, q), true
	}
	if v != accept {
		if v == refuse && table.rewritesClass(q) {
			return dst, false
		}
		return s.replyUnresolved(appendVerdict(dst, q, v, s.identity), l, reader, q), true
	}
	q.zone = table.find(q.lower)
	if q.zone == nil {
		return s.replyUnresolved(appendError(dst, q, dns.RcodeRefused, ede{}), l, reader, q), true
	}
	q.key = cache.AppendKey(q.lower[:0], q.lower, q.qtype, q.qclass, q.do, q.cd(), q.ad)
	if q.zone.Cache == nil || q.zone.Actions != nil && q.zone.Actions.concern(q) {
		return dst, false
	}
	dst, o, ok := s.fromCache(dst, q)
	if ok {
		s.record(reader, q, dst, o)
	}
	return dst, ok
}

// refusesClient reports whether q's client is outside, and counts it.
func (s *resolver) refusesClient(q *Query) bool {
	if s.outside == nil || !s.outside(q.client.Addr()) {
		return false
	}
	s.metrics.outsiders.Add(1)
	return true
}

// fromCache appends the reply to q if the cache has it. q.zone and q.key must
// be set. It sets q.found.
func (s *resolver) fromCache(dst []byte, q *Query) ([]byte, outcome, bool) {
	o := outcome{plugin: pluginCache}
	if q.zone.Cache == nil {
		return dst, o, false
	}
	hit := q.zone.Cache.GetInto(q.key, q.start, q.memory.entry())
	q.found = hit.State
	switch {
	case hit.State == cache.Fresh, hit.State == cache.Stale && !hit.Verify:
		v, known := s.hitView(q, hit.Entry)
		if !known {
			if hit.Refresh {
				q.zone.Cache.RefreshDone(q.key)
			}
			return dst, o, false
		}
		o.normalised = v.result
		v = q.zone.Normalise.shown(hit.Entry, v)
		if o.stale = hit.State == cache.Stale; o.stale {
			v = v.asStale()
		}
		dst = appendEntry(dst, q, hit.Entry, hit.Age, true, v)
	case hit.State == cache.Failed && s.answersEmpty(q):
		dst = appendError(dst, q, dns.RcodeSuccess, emptyNote())
		o.normalised = repaired
	case hit.State == cache.Failed:
		dst = appendError(dst, q, dns.RcodeServerFailure, ede{set: true, code: edeCachedError})
	default:
		return dst, o, false
	}
	if hit.Refresh {
		s.refresh(q)
	}
	_, o.lookup = hitKind(hit)
	o.rcode = replyRcode(dst)
	return dst, o, true
}

// hitView is the zone's view of an answer from its cache. It returns false if the
// view depends on an answer of upstream.
func (s *resolver) hitView(q *Query, e *cache.Entry) (view, bool) {
	if e.Kind() == cache.Success {
		return asIs(e, notJudged), true
	}
	n := q.zone.Normalise
	v, done := n.judge(q, e)
	if done {
		return v, true
	}
	sib, ok := q.zone.cachedSibling(q, q.start)
	if !ok {
		return v, false
	}
	q.zone.stats.sibling(fromCache)
	return n.verdict(e, sib), true
}

// hitKind returns the rcode of a cached answer, and the result under which the
// lookup is counted.
func hitKind(h cache.Hit) (rcode int, kind lookup) {
	if h.State == cache.Failed {
		return dns.RcodeServerFailure, lookupServfail
	}
	if h.Entry.Kind() == cache.Denial {
		return h.Entry.Rcode(), lookupDenial
	}
	return h.Entry.Rcode(), lookupSuccess
}

// asStale adds the Extended DNS Error of an expired answer, unless v has
// another one.
func (v view) asStale() view {
	switch {
	case v.note.set:
	case v.rcode == dns.RcodeNameError:
		v.note = ede{set: true, code: edeStaleNXDOMAIN}
	default:
		v.note = ede{set: true, code: edeStaleAnswer}
	}
	return v
}

// record counts a reply and logs it if the zone has a query log. The replies of
// a batch are counted together, with one reading of the clock.
// reader is the number of a UDP reader, or s.readers for others.
func (s *resolver) record(reader int, q *Query, reply []byte, o outcome) {
	o.size = len(reply)
	if m := q.memory; m != nil && m.batch && q.zone.Log == nil {
		m.tallies = append(m.tallies, newTally(q.zone.stats, q, o))
		return
	}
	o.took = s.clock().Sub(q.start)
	t := newTally(q.zone.stats, q, o)
	t.record(reader)
	if q.zone.Log != nil {
		q.zone.Log.write(q, reply, o)
	}
}

// replyUnresolved counts a reply to a query of no zone, and returns the reply.
func (s *resolver) replyUnresolved(reply []byte, l *listener, reader int, q *Query) []byte {
	t := newTally(l.unzoned, q, outcome{rcode: replyRcode(reply), size: len(reply), took: s.clock().Sub(q.start)})
	t.record(reader)
	return reply
}

// replyRcode is the rcode in a reply's header.
func replyRcode(reply []byte) int { return int(reply[3]) & rcodeMask }
