package server

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// Normalise corrects upstreams that answer NOERROR without records for names that do
// not exist (the normalize directive). It is a view: the cache stores the answer of
// upstream, and each reply is judged by the answers for the name that are known at
// that moment. The sibling of an answer is the answer for the other address type.
type Normalise struct {
	observe  bool // only count
	bare     bool // judge only answers without SOA
	repair   bool
	timeout  time.Duration
	ttl      uint32 // seconds
	suffixes [][]byte
	except   [][]byte
}

// NormaliseConfig is the normalize directive. Names are fully qualified.
type NormaliseConfig struct {
	Suffixes []string
	Except   []string
	Observe  bool
	Bare     bool
	Repair   bool
	Timeout  time.Duration // of the wait for the sibling
	TTL      time.Duration // the longest, of replies that are uncertain or have no SOA
}

// NewNormalise makes a Normalise. It returns nil if there are no suffixes.
func NewNormalise(c NormaliseConfig) (*Normalise, error) {
	n := &Normalise{
		observe: c.Observe, bare: c.Bare, repair: c.Repair,
		timeout: c.Timeout, ttl: uint32(c.TTL / time.Second),
	}
	var err error
	if n.suffixes, err = dnsname.PackAll(c.Suffixes); err != nil {
		return nil, err
	}
	if n.except, err = dnsname.PackAll(c.Except); err != nil {
		return nil, err
	}
	if len(n.suffixes) == 0 {
		return nil, nil
	}
	return n, nil
}

// normalised is the result of judging a denial, for the metrics.
type normalised uint8

const (
	notJudged normalised = iota
	rewritten
	repaired
	siblingData
	siblingUnknown
	outDNSSEC
	outCNAME
	outReferral
	outScope
	kept // NXDOMAIN stays NXDOMAIN
	numNormalised
)

// shown is the view for the reply: v, or in observe mode the answer of upstream.
func (n *Normalise) shown(e *cache.Entry, v view) view {
	if n != nil && n.observe {
		return view{rcode: e.Rcode(), maxTTL: noMaxTTL, result: v.result}
	}
	return v
}

// denial describes a reply without an answer.
type denial struct {
	nxdomain bool
	soa, ns  bool
	nsec     bool // an NSEC record of the name itself
	nxname   bool // its type map has NXNAME (RFC 9824 §2)
}

// judge judges e without its sibling. It returns false if the sibling decides. A
// nil Normalise changes nothing.
func (n *Normalise) judge(q *Query, e *cache.Entry) (view, bool) {
	if n == nil || q.qtype != dns.TypeA && q.qtype != dns.TypeAAAA {
		return asIs(e, notJudged), true
	}
	msg := e.Msg()
	flags := binary.BigEndian.Uint16(msg[2:])
	nxdomain := e.Rcode() == dns.RcodeNameError
	if e.Rcode() != dns.RcodeSuccess && !nxdomain || flags&flagTC != 0 {
		return asIs(e, notJudged), true
	}
	if binary.BigEndian.Uint16(msg[6:]) > 0 {
		return asIs(e, answerKind(msg, q)), true
	}
	if q.do || q.cd || flags&flagAD != 0 {
		return asIs(e, outDNSSEC), true
	}
	if !n.inScope(q.lower) {
		return asIs(e, outScope), true
	}
	v, done := n.judgeDenial(e, readDenial(msg, q))
	if done && v.result == rewritten && q.zone.knownSibling(q, q.start).hasData() {
		return asIs(e, siblingData), true // an older proof
	}
	return v, done
}

// judgeDenial judges e by its authority section.
func (n *Normalise) judgeDenial(e *cache.Entry, d denial) (view, bool) {
	switch {
	case d.nxdomain && !n.repair:
		return asIs(e, notJudged), true
	case d.nxdomain:
		return view{}, false
	case d.ns && !d.soa:
		return asIs(e, outReferral), true
	case n.bare && d.soa:
		return asIs(e, outScope), true
	case d.nsec && !d.nxname:
		return asIs(e, outDNSSEC), true
	case d.nxname:
		return n.nxdomain(e), true
	}
	return view{}, false
}

// answerKind returns outCNAME for an answer that ends in a CNAME or DNAME, which
// may look empty to a client.
func answerKind(msg []byte, q *Query) normalised {
	alias := false
	count := int(binary.BigEndian.Uint16(msg[6:]))
	for r := range recordsOf(msg) {
		if count--; count < 0 {
			break
		}
		if r.typ == q.qtype {
			return notJudged
		}
		alias = alias || r.typ == dns.TypeCNAME || r.typ == dns.TypeDNAME
	}
	if alias {
		return outCNAME
	}
	return notJudged
}

// inScope reports whether name is below a suffix and not at or below an
// exception.
func (n *Normalise) inScope(name []byte) bool {
	for _, x := range n.except {
		if dnsname.IsBelow(name, x) || bytes.Equal(name, x) {
			return false
		}
	}
	for _, s := range n.suffixes {
		if dnsname.IsBelow(name, s) {
			return true
		}
	}
	return false
}

// readDenial reads the authority section of msg, a denial.
func readDenial(msg []byte, q *Query) denial {
	d := denial{nxdomain: int(msg[3])&rcodeMask == dns.RcodeNameError}
	for r := range recordsOf(msg) {
		switch r.typ {
		case dns.TypeSOA:
			d.soa = true
		case dns.TypeNS:
			d.ns = true
		case dns.TypeNSEC:
			if r.ownerIs(msg, q.lower) {
				d.nsec = true
				d.nxname = d.nxname || nsecHas(msg[r.rdata:r.end], dns.TypeNXNAME)
			}
		}
	}
	return d
}

// sibling is the known answer for the other address type of a name.
type sibling struct {
	entry *cache.Entry // nil: nothing, or a failure
	left  uint32       // seconds until entry expires
	stale bool
}

// verdict judges e by its sibling.
func (n *Normalise) verdict(e *cache.Entry, s sibling) view {
	nxdomain := e.Rcode() == dns.RcodeNameError
	switch {
	case s.hasData() && nxdomain:
		v := view{rcode: dns.RcodeSuccess, maxTTL: min(s.left, n.boundTTL(e)), result: repaired}
		v.note = ede{set: true, code: edeSynthesized, text: "NXDOMAIN, but the name has an address of the other type"}
		return v
	case s.hasData():
		return asIs(e, siblingData)
	case nxdomain && s.denies():
		return asIs(e, kept)
	case nxdomain: // the other type may still have data
		return view{rcode: dns.RcodeNameError, maxTTL: min(n.ttl, unknownTTL), result: siblingUnknown}
	case s.denies():
		v := n.nxdomain(e)
		// The name may have data of other types. Without a SOA, a resolver between
		// the client and nodens does not cache the NXDOMAIN (RFC 2308 §5).
		v.bare = true
		return v
	}
	return view{rcode: e.Rcode(), maxTTL: n.ttl, result: siblingUnknown}
}

// nxdomain is the view of an empty answer for a name that does not exist.
func (n *Normalise) nxdomain(e *cache.Entry) view {
	return view{
		rcode: dns.RcodeNameError, maxTTL: n.boundTTL(e), result: rewritten,
		note: ede{set: true, code: edeSynthesized, text: "empty answer, and the name has no address of either type"},
	}
}

// boundTTL is the TTL cap of a rewritten reply without SOA. A SOA has its own
// TTL.
func (n *Normalise) boundTTL(e *cache.Entry) uint32 {
	for r := range recordsOf(e.Msg()) {
		if r.typ == dns.TypeSOA {
			return noMaxTTL
		}
	}
	return n.ttl
}

// hasData reports whether the name exists with the sibling's type, or as an
// alias: fresh or stale.
func (s sibling) hasData() bool {
	return s.entry != nil && binary.BigEndian.Uint16(s.entry.Msg()[6:]) > 0
}

// denies reports whether a fresh answer of upstream has no data.
func (s sibling) denies() bool {
	if s.entry == nil || s.stale || s.hasData() {
		return false
	}
	msg := s.entry.Msg()
	flags := binary.BigEndian.Uint16(msg[2:])
	rcode := s.entry.Rcode()
	return flags&flagTC == 0 && (rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError)
}

// answersEmpty reports whether a failure to answer q becomes an empty answer,
// because the name has an address of the other type. A stub resolver that gets
// SERVFAIL for one of the two would lose it, as musl does after five seconds.
func (s *resolver) answersEmpty(q *Query) bool {
	return q.zone.Normalise.mayAnswerEmpty(q) && q.zone.knownSibling(q, s.clock()).hasData()
}

// mayAnswerEmpty reports whether answersEmpty may be true for q. For a nil Normalise
// it is false.
func (n *Normalise) mayAnswerEmpty(q *Query) bool {
	if n == nil || n.observe || !n.repair || q.do || q.cd || q.qtype != dns.TypeA && q.qtype != dns.TypeAAAA {
		return false
	}
	return n.inScope(q.lower)
}

// emptyNote is the Extended DNS Error of that empty answer.
func emptyNote() ede {
	return ede{set: true, code: edeSynthesized, text: "no answer for this type, but the name has an address of the other"}
}

// siblingSource is the source of a sibling, for the metrics.
type siblingSource int

const (
	fromCache siblingSource = iota
	fromInflight
	fromUpstream
	numSiblingSources
)

// siblingQuery makes into the question for the other address type.
func (q *Query) siblingQuery(into *Query) *Query {
	q.copyTo(into)
	into.qtype = dns.TypeA + dns.TypeAAAA - q.qtype
	into.makeKey()
	return into
}

// cachedSibling looks the sibling up in the cache. It returns false if upstream must
// be queried.
func (z *Zone) cachedSibling(q *Query, now time.Time) (sibling, bool) {
	hit := z.peekSibling(q, now)
	switch hit.State {
	case cache.Fresh:
		return sibling{entry: hit.Entry, left: secondsLeft(hit)}, true
	case cache.Failed:
		return sibling{}, true
	}
	return sibling{}, false
}

// peekSibling looks the sibling of q's question up.
func (z *Zone) peekSibling(q *Query, now time.Time) cache.Hit {
	var buf [maxKeyLen]byte
	var e *cache.Entry
	if q.memory != nil {
		e = &q.memory.other
	}
	return z.peek(cache.AppendKey(buf[:0], q.lower, dns.TypeA+dns.TypeAAAA-q.qtype, q.qclass, q.do, q.cd, q.ad), now, e)
}

// knownSibling is the sibling in the cache, fresh or expired. An expired address
// still proves that the name exists.
func (z *Zone) knownSibling(q *Query, now time.Time) sibling {
	hit := z.peekSibling(q, now)
	switch hit.State {
	case cache.Fresh:
		return sibling{entry: hit.Entry, left: secondsLeft(hit)}
	case cache.Stale:
		return sibling{entry: hit.Entry, left: staleSiblingTTL, stale: true}
	}
	return sibling{}
}

// secondsLeft is how long a fresh hit stays fresh. With keepttl, Age is 0 and
// clients get the whole TTL.
func secondsLeft(h cache.Hit) uint32 {
	ttl := uint32(h.Entry.TTL() / time.Second)
	return ttl - min(h.Age, ttl)
}

// siblingWait is a job's wait for the sibling of its answer.
type siblingWait struct {
	a     answer // to the job's own question
	begin time.Time
	from  siblingSource
}

const (
	// siblingAlone bounds the wait if only nodens queries the sibling of an
	// NXDOMAIN. If the client queries both, it waits for emptyWait.
	siblingAlone = 300 * time.Millisecond
	// resolveWait bounds the whole wait of a client.
	resolveWait = 3900 * time.Millisecond
)

// normalise is the view of a in a zone that has a Normalise. It returns false if the view depends on the
// sibling. Then j waits for the sibling. In observe mode the client does not wait.
func (j *job) normalise(a answer) (view, bool) {
	q, n := &j.q, j.q.zone.Normalise
	if a.cut {
		return asIs(a.entry, notJudged), true
	}
	v, done := n.judge(q, a.entry)
	if done {
		return n.shown(a.entry, v), true
	}
	sib, known := q.zone.cachedSibling(q, j.srv.clock())
	switch {
	case n.observe:
		j.srv.observe(q, a.entry, sib, known)
		return asIs(a.entry, notJudged), true
	case known:
		q.zone.stats.sibling(fromCache)
		q.zone.stats.siblingWaited(0)
		return n.verdict(a.entry, sib), true
	}
	j.waitSibling(a)
	return view{}, false
}

// waitSibling makes j wait for the sibling of its answer a.
func (j *job) waitSibling(a answer) {
	q, now := &j.q, j.srv.clock()
	var other Query
	q.siblingQuery(&other)
	other.start = now
	key := other.inflightKey()
	wait := q.zone.Normalise.timeout
	if a.entry.Rcode() == dns.RcodeNameError {
		wait = min(wait, siblingAlone)
		if j.srv.inflight.waits(key, q.client.Addr()) {
			wait = emptyWait
		}
	}
	wait = max(min(wait, resolveWait-now.Sub(q.start)), 0)
	w := &siblingWait{a: a, begin: now, from: fromInflight}
	j.sibling = w
	if !j.srv.inflight.hasWaiters(key) {
		w.from = fromUpstream
	}
	timer := time.AfterFunc(resolveWait, func() {
		if j.srv.inflight.leave(key, j, nil) {
			j.siblingKnown(answer{err: errTimeout})
		}
	})
	j.timer = timer
	j.srv.background(&other, j)
	if timer.Stop() { // siblingKnown has not stopped it
		timer.Reset(wait) // only now: leave finds j only while j waits
	}
}

// siblingKnown ends the wait of j for the sibling, whose answer is a.
func (j *job) siblingKnown(a answer) {
	defer j.recoverPanic()
	j.timer.Stop()
	q, w := &j.q, j.sibling
	q.zone.stats.sibling(w.from)
	q.zone.stats.siblingWaited(j.srv.clock().Sub(w.begin))
	j.reply(w.a, q.zone.Normalise.verdict(w.a.entry, q.sibling(a, j.srv.clock())))
}

// sibling returns q's sibling according to the answer a. If a has no result, it uses
// an older answer.
func (q *Query) sibling(a answer, now time.Time) sibling {
	if a.err == nil {
		if sib := (sibling{entry: a.entry, left: q.zone.Normalise.secondsLeft(a)}); sib.hasData() || sib.denies() {
			return sib
		}
	}
	return q.zone.knownSibling(q, now)
}

// askSibling queries AAAA together with q, an A question, if the reply may depend on
// both. So a client that queries only A does not wait twice.
func (s *resolver) askSibling(q *Query) {
	if _, known := q.zone.cachedSibling(q, q.start); known {
		return
	}
	var other Query
	s.background(q.siblingQuery(&other), nil)
}

// observe judges e, the answer to q, and counts. It waits for the sibling in the
// background unless that is known.
func (s *resolver) observe(q *Query, e *cache.Entry, sib sibling, known bool) {
	o := &observer{srv: s, entry: e, from: fromCache}
	q.copyTo(&o.q)
	if known {
		o.count(sib)
		return
	}
	var other Query
	if o.from = fromInflight; !s.inflight.hasWaiters(q.siblingQuery(&other).inflightKey()) {
		o.from = fromUpstream
	}
	if s.misses.acquire(q.zone, q.client.Addr(), forItself) != nil {
		o.count(sibling{})
		return
	}
	s.background(&other, o)
}

// observer waits for a sibling only to count it. It has a slot.
type observer struct {
	queued int // see waiter.place
	srv    *resolver
	q      Query
	entry  *cache.Entry
	from   siblingSource
}

func (o *observer) place() *int { return &o.queued }

func (o *observer) deliver(a answer) {
	o.srv.misses.release(o.q.zone, o.q.client.Addr(), forItself)
	o.count(o.q.sibling(a, o.srv.clock()))
}

func (o *observer) count(sib sibling) {
	o.q.zone.stats.sibling(o.from)
	o.q.zone.stats.judged(o.srv.readers, o.q.qtype, o.q.zone.Normalise.verdict(o.entry, sib).result)
}

// secondsLeft is how long the answer of an exchange is valid.
func (n *Normalise) secondsLeft(a answer) uint32 {
	left := uint32(a.entry.TTL() / time.Second)
	if left == 0 {
		return n.ttl // not stored: valid for this reply
	}
	return left - min(a.age, left)
}

// unknownTTL is the TTL cap in seconds of an NXDOMAIN whose sibling is unknown: it did
// not come in time, was not queried for lack of slots, or failed.
const unknownTTL = 5

// staleSiblingTTL is the TTL in seconds of a reply that depends on expired data,
// RFC 8767 §4.
const staleSiblingTTL = 30
