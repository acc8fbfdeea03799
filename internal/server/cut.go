package server

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// SearchCut cuts the search paths of stub resolvers short (RFC 8020). A cut is an
// ancestor of which the upstream has said NXDOMAIN. All names below it are answered
// from it. The cache stores cuts; a SearchCut finds and checks them.
//
// Ancestors have one label more than a domain D, or than svc.D and its namespaces:
// x.D, or x.svc.D and y.x.svc.D. It is safe for concurrent use.
type SearchCut struct {
	log     *slog.Logger
	domains [][]byte // longest first

	off atomic.Bool // the upstream has data below a name that it denies

	mu        sync.Mutex
	probing   int                              // probes in flight
	ancestors *simplelru.LRU[string, ancestor] // by name in wire format
}

// NewSearchCut makes the SearchCut of a zone for names below domains, which are at or
// below the zone.
func NewSearchCut(domains []string, log *slog.Logger) (*SearchCut, error) {
	packed, err := dnsname.PackAll(domains)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(packed, func(a, b []byte) int { return len(b) - len(a) })
	ancestors, err := simplelru.NewLRU[string, ancestor](maxAncestors, nil)
	return &SearchCut{log: log, domains: packed, ancestors: ancestors}, err
}

// locate returns the offsets in name of the ancestors that may become cuts, or -1: the
// outer one, and below svc the inner one. An offset of 0 is name itself. name is in
// lower-case wire format.
func (c *SearchCut) locate(name []byte) (outer, inner int) {
	for _, d := range c.domains {
		end := len(name) - len(d)
		if end <= 0 || string(name[end:]) != string(d) {
			continue
		}
		first, second, third := -1, -1, -1 // the labels before d, the last one first
		off := 0
		for off < end {
			first, second, third = off, first, second
			off += 1 + int(name[off])
		}
		if off != end {
			continue // d begins within a label
		}
		if string(name[first:end]) == "\x03svc" {
			return divisible(name, second, third)
		}
		if neverCut(name[first:end]) {
			return -1, -1
		}
		return divisible(name, first, -1)
	}
	return -1, -1
}

// divisible is locate without the ancestors that begin with an excluded label.
func divisible(name []byte, outer, inner int) (int, int) {
	switch {
	case outer < 0 || excluded(name[outer:]):
		return -1, -1
	case inner >= 0 && excluded(name[inner:]):
		return outer, -1
	}
	return outer, inner
}

// neverCut reports whether a label directly below a domain may have names below it
// although the upstream denies it: CoreDNS says NXDOMAIN for dns.D and has ns.dns.D.
func neverCut(label []byte) bool {
	switch string(label) {
	case "\x03pod", "\x03dns", "\x0aclusterset":
		return true
	}
	return false
}

// excluded reports whether the first label of name is that of an SRV owner or arpa.
func excluded(name []byte) bool {
	return name[1] == '_' || name[0] == 4 && string(name[1:5]) == "arpa"
}

// cutKey appends the key under which the cut of an ancestor is stored.
func cutKey(dst, name []byte) []byte {
	return cache.AppendKey(dst, name, dns.TypeA, dns.ClassINET, false, false, false)
}

// below looks up the cut that the name of key is below. It also returns the name of the
// cut. e is for cache.Cache.GetBelow.
func (z *boundZone) below(key []byte, now time.Time, e *cache.Entry) (cache.Hit, []byte) {
	if z.Cut.off.Load() {
		return cache.Hit{}, nil
	}
	name := key[:len(key)-keyTail]
	outer, inner := z.Cut.locate(name)
	var buf [maxKeyLen]byte
	for _, off := range [2]int{inner, outer} {
		if off <= 0 {
			continue
		}
		if hit := z.Cache.GetBelow(cutKey(buf[:0], name[off:]), key, now, e); hit.State != cache.Miss {
			return hit, name[off:]
		}
	}
	return cache.Hit{}, nil
}

// fromCut appends the reply to q if q's name is below a cut. own is what the cache has
// for q itself: nothing fresh. If the zone has local sources, such as hosts, these come
// first, see exchange.fromCut.
func (s *resolver) fromCut(dst []byte, q *Query, own cache.Hit) ([]byte, outcome, bool) {
	if q.zone.cutAt > 0 || own.State == cache.Stale && exists(own.Entry) {
		return dst, outcome{}, false
	}
	var e *cache.Entry
	if q.memory != nil {
		e = &q.memory.other
	}
	hit, name := q.zone.below(q.key, q.start, e)
	if hit.Refresh {
		s.refreshCut(q.zone, q.client, name, q.lower, q.qtype)
	}
	switch {
	case hit.State == cache.Miss, own.State == cache.Stale && hit.State != cache.Fresh:
		return dst, outcome{}, false
	case hit.Verify:
		q.found = cache.Stale
		return dst, outcome{}, false
	}
	if own.Refresh {
		q.zone.Cache.RefreshDone(q.key)
	}
	dst, o := denyBelow(dst, q, hit)
	return dst, o, true
}

// denyBelow appends the reply to q that follows from a cut.
func denyBelow(dst []byte, q *Query, hit cache.Hit) ([]byte, outcome) {
	v, o := asIs(hit.Entry, notJudged), outcome{plugin: pluginCache, lookup: lookupDenial, cut: true}
	if o.stale = hit.State == cache.Stale; o.stale {
		v = v.asStale()
	} else {
		v.note = cutNote()
	}
	return appendEntry(dst, q, hit.Entry, hit.Age, true, v), o
}

// cutNote is the Extended DNS Error of answers from a cut.
func cutNote() ede { return ede{set: true, code: edeSynthesized} }

// fromCut answers x if its name is below a cut, and reports whether it did. The zone's
// local sources have passed the question on.
func (x *exchange) fromCut() bool {
	if x.bypass {
		return false
	}
	hit, cut := x.zone.below(x.key, x.srv.clock(), nil)
	if hit.State == cache.Fresh {
		x.deliver(answer{entry: hit.Entry, plugin: pluginCache, age: hit.Age, note: cutNote(), cut: true})
	}
	if hit.Refresh {
		name, qtype := x.question()
		x.srv.refreshCut(x.zone, x.client, cut, name, qtype)
	}
	return hit.State == cache.Fresh
}

// question returns the name, in lower-case wire format, and the type that x asks for.
func (x *exchange) question() ([]byte, uint16) {
	return x.key[:len(x.key)-keyTail], x.m.Question[0].Qtype
}

// refreshCut asks for cut again, and for a name below it that client has asked: an
// answer would contradict the cut.
func (s *resolver) refreshCut(z *boundZone, client netip.AddrPort, cut, name []byte, qtype uint16) {
	s.askCut(z, client, cut, dns.TypeA, &refreshed{zone: z, key: cutKey(nil, cut)})
	s.askCut(z, client, name, qtype, nil)
}

// askCut asks the sources of z in the background, on behalf of client.
func (s *resolver) askCut(z *boundZone, client netip.AddrPort, name []byte, qtype uint16, w waiter) {
	q := Query{
		name: slices.Clone(name), lower: slices.Clone(name), qtype: qtype, qclass: dns.ClassINET, flags: flagRD,
		client: client, zone: z, start: s.clock(), bypass: true,
	}
	q.makeKey()
	if s.background(&q, w) {
		z.stats.rest().cutProbes.Add(1)
	}
}

// waitForCut makes j wait, for at most emptyWait, if a cut above its name has expired
// and is in flight again. If it has expired and is not in flight, waitForCut asks for
// it. Then j must ask for its own name, which checks the cut.
func (j *job) waitForCut() bool {
	q, z := &j.q, j.q.zone
	if z.cutAt != 0 || j.ownName || q.private || q.do || q.cd || q.found == cache.Stale {
		return false
	}
	name := z.Cut.denied(q.lower)
	if name == nil {
		return false
	}
	cut := Query{lower: slices.Clone(name), qtype: dns.TypeA, qclass: dns.ClassINET, client: q.client, tcp: q.tcp, zone: z}
	cut.makeKey()
	if s := z.peek(cut.key, j.srv.clock(), nil).State; s == cache.Fresh || s == cache.Failed {
		return false
	}
	w, key, inflight := &cutWait{j: j}, cut.inflightKey(), &j.srv.inflight
	w.timer = time.AfterFunc(emptyWait, func() {
		if inflight.leave(key, w, nil) {
			w.giveUp()
		}
	})
	notInFlight := func(*exchange) error { return errNotInFlight }
	if _, err := inflight.join(key, w, q.start, notInFlight); err == nil {
		return true
	}
	w.timer.Stop()
	j.srv.askCut(z, q.client, name, dns.TypeA, nil)
	return false
}

// errNotInFlight ends an inflight.join that must not start an exchange.
var errNotInFlight = errors.New("not in flight")

// cutWait makes a job wait for the answer for a name above its own.
type cutWait struct {
	queued int // see waiter.place
	j      *job
	timer  *time.Timer // ends the wait
}

func (w *cutWait) place() *int { return &w.queued }

// deliver answers the job from the cut, if there is one now.
func (w *cutWait) deliver(answer) {
	w.timer.Stop()
	j := w.j
	if hit, _ := j.q.zone.below(j.q.key, j.srv.clock(), nil); hit.State == cache.Fresh {
		j.deliver(answer{entry: hit.Entry, plugin: pluginCache, age: hit.Age, note: cutNote(), cut: true})
		return
	}
	w.giveUp()
}

// giveUp makes the job ask for its own name: there is no answer for the name above, or
// only a failure, which says nothing about the job's name.
func (w *cutWait) giveUp() {
	defer w.j.recoverPanic()
	w.j.ownName = true
	w.j.miss()
}
