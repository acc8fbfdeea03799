package server

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/querystats"
)

// optLen is the length of an OPT record without options (RFC 6891 §6.1.2).
const optLen = 11

// ede is an Extended DNS Error (RFC 8914). Code 0 means "other", so set shows
// whether there is an error.
type ede struct {
	set  bool
	code uint16
	text string
}

func (e ede) len() int {
	if !e.set {
		return 0
	}
	return 4 + 2 + len(e.text)
}

// optLen is the length of the OPT record in the reply to q.
func (q *Query) optLen(note ede) int {
	n := optLen + note.len()
	if q.nsid {
		n += 4 + len(q.zone.Actions.NSID)
	}
	return n
}

// view is how a reply presents an entry.
type view struct {
	rcode  int // of the reply
	maxTTL uint32
	bare   bool // the question only, without the records of the entry
	note   ede
	result normalised
}

// noMaxTTL does not lower TTLs.
const noMaxTTL = ^uint32(0)

// asIs is the view that changes nothing.
func asIs(e *cache.Entry, r normalised) view {
	return view{rcode: e.Rcode(), maxTTL: noMaxTTL, result: r}
}

// appendEntry appends the reply to q: the packed bytes of entry as v presents
// them, with the client's ID, flags, spelling of the name and OPT. age is for
// Entry.AgeTTLs. cached clears AA, because a cache is no authority (RFC 1035
// §4.1.1).
func appendEntry(dst []byte, q *Query, entry *cache.Entry, age uint32, cached bool, v view) []byte {
	if v.rcode > rcodeMask && !q.opt {
		return appendError(dst, q, dns.RcodeServerFailure, ede{})
	}
	start := len(dst)
	dst = append(dst, entry.Msg()...)
	msg := dst[start:]
	binary.BigEndian.PutUint16(msg, q.id)
	flags := binary.BigEndian.Uint16(msg[2:])
	if v.rcode != entry.Rcode() { // a changed answer is neither authoritative nor validated
		flags = flags&^(flagAA|flagAD|rcodeMask) | uint16(v.rcode)
	}
	binary.BigEndian.PutUint16(msg[2:], replyFlags(flags, q, cached))
	copy(msg[headerLen:], q.name)
	switch {
	case v.bare:
		clear(msg[6:headerLen])
		msg = msg[:headerLen+len(q.name)+4]
		dst = dst[:start+len(msg)]
	default:
		entry.AgeTTLs(msg, age)
		if v.maxTTL != noMaxTTL {
			capTTLs(msg, v.maxTTL)
		}
	}

	reserve := 0
	if q.opt {
		reserve = q.optLen(v.note)
	}
	if len(msg)+reserve > minUDPSize { // smaller replies always fit
		if limit := q.limit() - reserve; len(msg) > limit {
			msg = entry.Truncate(msg, limit)
			dst = dst[:start+len(msg)]
		}
	}
	if q.opt {
		dst = appendOPT(dst, start, q, v.rcode, v.note)
	}
	return dst
}

// replyFlags are the flags of the header: upstream's for the answer, the client's
// for the question, and RA. AD is set only for clients that set AD or DO (RFC
// 6840 §5.7, §5.8).
func replyFlags(stored uint16, q *Query, cached bool) uint16 {
	f := stored & (flagAA | flagTC | flagAD | rcodeMask)
	if cached {
		f &^= flagAA
	}
	if !q.do && q.flags&flagAD == 0 {
		f &^= flagAD
	}
	return f | flagQR | flagRA | q.flags&(flagRD|flagCD)
}

// appendError appends a reply without records. It has the question if that could
// be read.
func appendError(dst []byte, q *Query, rcode int, note ede) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, q.id)
	flags := flagQR | flagRA | q.flags&(opcodeMask|flagRD|flagCD) | uint16(rcode)&rcodeMask
	dst = binary.BigEndian.AppendUint16(dst, flags)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	if q.name != nil {
		dst[start+5] = 1
		dst = append(dst, q.name...)
		dst = binary.BigEndian.AppendUint16(dst, q.qtype)
		dst = binary.BigEndian.AppendUint16(dst, q.qclass)
	}
	if q.opt {
		dst = appendOPT(dst, start, q, rcode, note)
	}
	return dst
}

// appendOPT appends an OPT record to the message that begins at start, and counts
// it in the header.
func appendOPT(dst []byte, start int, q *Query, rcode int, note ede) []byte {
	dst = append(dst, 0) // owner: the root
	dst = binary.BigEndian.AppendUint16(dst, dns.TypeOPT)
	dst = binary.BigEndian.AppendUint16(dst, maxUDPSize)
	var do byte
	if q.do {
		do = 0x80
	}
	dst = append(dst, byte(rcode>>4), 0, do, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(q.optLen(note)-optLen))
	if q.nsid {
		id := q.zone.Actions.NSID
		dst = binary.BigEndian.AppendUint16(dst, dns.EDNS0NSID)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(id)))
		dst = append(dst, id...)
	}
	if note.set {
		dst = binary.BigEndian.AppendUint16(dst, dns.EDNS0EDE)
		dst = binary.BigEndian.AppendUint16(dst, uint16(2+len(note.text)))
		dst = binary.BigEndian.AppendUint16(dst, note.code)
		dst = append(dst, note.text...)
	}
	count := dst[start+10 : start+12]
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	return dst
}

// appendVerdict appends the reply to a message with verdict v. identity is
// Config.Identity.
func appendVerdict(dst []byte, q *Query, v verdict, identity string) []byte {
	switch v {
	case identify:
		return appendIdentity(dst, q, identity)
	case formErr:
		return appendError(dst, q, dns.RcodeFormatError, ede{})
	case notImp:
		return appendError(dst, q, dns.RcodeNotImplemented, ede{})
	case badVers:
		return appendError(dst, q, dns.RcodeBadVers, ede{})
	case refuse:
		return appendError(dst, q, dns.RcodeRefused, ede{})
	case nxnameType:
		return appendError(dst, q, dns.RcodeFormatError, ede{set: true, code: edeInvalidQueryType})
	}
	return dst
}

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
			if t := q.zone.Tap; t != nil {
				q.tap(t, time.Time{}, q.wire)
			}
			return dst, false
		}
		return s.replyUnresolved(appendVerdict(dst, q, v, s.identity), l, reader, q), true
	}
	q.zone = table.find(q.lower)
	if q.zone == nil {
		return s.replyUnresolved(appendError(dst, q, dns.RcodeRefused, ede{}), l, reader, q), true
	}
	if t := q.zone.Tap; t != nil {
		q.tap(t, time.Time{}, q.wire)
	}
	q.key = cache.AppendKey(q.lower[:0], q.lower, q.qtype, q.qclass, q.do, q.cd, q.ad)
	if q.zone.Cache == nil || q.zone.Actions != nil && q.zone.Actions.concern(q) {
		return dst, false
	}
	dst, o, ok := s.fromCache(dst, q)
	if ok {
		s.record(reader, q.zone.stats, q, dst, o)
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
	var e *cache.Entry
	if q.memory != nil {
		e = &q.memory.answer
	}
	hit := q.zone.Cache.GetInto(q.key, q.start, e)
	q.found = hit.State
	if q.zone.Cut != nil && hit.State != cache.Fresh {
		if dst, o, ok := s.fromCut(dst, q, hit); ok {
			return dst, o, true
		}
	}
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
		if o.stale = hit.State == cache.Stale; o.stale {
			v = v.asStale()
		}
		q.plain = q.zone.plain && hit.State == cache.Fresh && v.unchanged(hit.Entry)
		q.judged = v.result
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
	o.lookup = hitKind(hit)
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
		return n.shown(e, v), true
	}
	sib, ok := q.zone.cachedSibling(q, q.start)
	if !ok {
		return v, false
	}
	q.zone.stats.sibling(fromCache)
	return n.shown(e, n.verdict(e, sib)), true
}

// hitKind returns the result under which the lookup is counted.
func hitKind(h cache.Hit) lookup {
	switch {
	case h.State == cache.Failed:
		return lookupServfail
	case h.Entry.Kind() == cache.Denial:
		return lookupDenial
	}
	return lookupSuccess
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

// record counts a reply in z and logs it if the zone has a query log. The replies of
// a batch are counted together, with one reading of the clock.
// reader is the number of a UDP reader, or s.readers for others.
func (s *resolver) record(reader int, z *zoneStats, q *Query, reply []byte, o outcome) {
	o.size, o.rcode = len(reply), int(reply[3])&rcodeMask
	t := tally{outcome: o, stats: z, qtype: q.qtype, asked: int(q.size), do: q.do}
	if q.tcp {
		t.proto = 1
	}
	if !q.client.Addr().Is4() {
		t.family = 1
	}
	logged, tapped := q.zone != nil && q.zone.Log != nil, q.zone != nil && q.zone.Tap != nil
	m, weight, sampled := q.memory, uint32(1), true
	batch := m != nil && m.batch && !logged && !tapped
	if batch {
		m.tallies = append(m.tallies, t)
		if weight, sampled = m.sampler.Next(s.metrics.stats); !sampled {
			return
		}
	}
	sample := querystats.Sample{
		Name: q.name, Client: q.client.Addr(), Zone: z.number, Weight: weight,
		NXDomain: o.rcode == dns.RcodeNameError, Waited: o.waited || o.plugin != pluginCache,
	}
	if batch && z.listed {
		m.samples = append(m.samples, sample)
	}
	if batch {
		return
	}
	end := s.clock()
	t.took = end.Sub(q.start)
	t.count(reader)
	if z.listed {
		s.metrics.stats.Add([]querystats.Sample{sample}, t.took, end)
	}
	if logged {
		q.zone.Log.write(q, reply, t.outcome)
	}
	if tapped {
		q.tap(q.zone.Tap, end, reply)
	}
}

// replyUnresolved counts a reply to a query of no zone, and returns the reply.
func (s *resolver) replyUnresolved(reply []byte, l *listener, reader int, q *Query) []byte {
	s.record(reader, l.unzoned, q, reply, outcome{})
	return reply
}
