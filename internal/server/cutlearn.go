package server

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// ancestor is what a SearchCut knows about a name that may become a cut.
type ancestor struct {
	probed time.Time
	denied bool          // by the last answer
	life   time.Duration // how long resolvers may keep the denial
	child  []byte        // a name below that exists, in lower-case wire format; nil: none is known
	qtype  uint16        // of the answer for child
	until  time.Time     // the answer for child is fresh until then
	due    time.Time     // not zero: child contradicts the denial; from then on, both are asked again
}

const (
	maxAncestors = 4096
	maxProbes    = 32 // in flight, of one zone

	// probeGap is the least time between two probes of one ancestor. It matters if
	// the answer is not cached.
	probeGap = time.Second

	// maxDoubt bounds the wait until a contradiction is checked.
	maxDoubt = 10 * time.Minute
)

// exists reports whether e proves that its name exists: by data, an alias, or a NODATA
// answer with SOA (RFC 2308 §2.2).
func exists(e *cache.Entry) bool {
	msg := e.Msg()
	if binary.BigEndian.Uint16(msg[6:]) > 0 {
		return true
	}
	return e.Rcode() == dns.RcodeSuccess && e.TTL() > 0 && binary.BigEndian.Uint16(msg[8:]) > 0
}

// learn uses an upstream's answer to x, stored as e: it makes cuts and finds
// contradictions.
func (x *exchange) learn(e *cache.Entry, r sourced) {
	c := x.zone.Cut
	name, _ := x.question()
	outer, inner := c.locate(name)
	if outer < 0 || c.off.Load() || pluginLabels[r.plugin] != "forward" {
		return
	}
	switch {
	case exists(e):
		x.zone.existing(x, e.TTL(), outer, inner)
	case e.Rcode() == dns.RcodeNameError && e.TTL() > 0:
		if (outer == 0 || inner == 0) && bytes.Equal(x.key, cutKey(nil, name)) {
			x.denied(e, r.Msg)
		}
		x.probes = !x.bypass
	case outer == 0 || inner == 0:
		c.notDenied(name)
	}
}

// denialLife is how long resolvers may keep m, the denial of a name below a domain,
// whatever is left of it now. It reports false if m's SOA is not of a zone at or below
// the domain: a resolver that does not know the domain, and asked the root, knows nothing
// of the names below.
func (c *SearchCut) denialLife(m *dns.Msg) (time.Duration, bool) {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			ours := slices.ContainsFunc(c.domains, func(d []byte) bool { return dns.IsSubDomain(dnsname.String(d), soa.Hdr.Name) })
			return time.Duration(max(soa.Hdr.Ttl, soa.Minttl)) * time.Second, ours
		}
	}
	return 0, false
}

// existing ends the cuts above x's name, which exists.
func (z *boundZone) existing(x *exchange, ttl time.Duration, outer, inner int) {
	name, qtype := x.question()
	for _, off := range [2]int{outer, inner} {
		if off < 0 {
			continue
		}
		unmark := func() bool { return z.Cache.UnmarkCut(cutKey(nil, name[off:])) }
		if off == 0 {
			unmark()
			z.Cut.notDenied(name)
		} else if z.Cut.sawBelow(name[off:], name, qtype, x.srv.clock(), ttl, unmark) {
			z.contradicted(name[off:], name)
		}
	}
}

// denied handles m, the denial of x's name, stored as e. It makes the name a cut, unless
// a name below it exists or existed when nodens last asked for it.
func (x *exchange) denied(e *cache.Entry, m *dns.Msg) {
	z, now := x.zone, x.srv.clock()
	name, _ := x.question()
	life, ours := z.Cut.denialLife(m)
	if !ours {
		z.Cut.notDenied(name)
		return
	}
	a, v := z.Cut.judge(name, now, life, func() {
		if z.Cache.MarkCut(x.key, e) {
			z.stats.rest().cutsFound.Add(1)
		}
	})
	switch v {
	case nowDoubted:
		z.contradicted(name, a.child)
	case askChild:
		x.srv.askCut(z, x.client, a.child, a.qtype, &contradiction{zone: z, name: bytes.Clone(name), child: a.child})
	}
}

// sawBelow records that child, a name below the given one, exists. It reports whether
// name was a cut and child is its first contradiction. It calls unmark, which ends the
// cut, with mu held: judge cannot make name a cut meanwhile.
func (c *SearchCut) sawBelow(name, child []byte, qtype uint16, now time.Time, ttl time.Duration, unmark func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasCut := unmark()
	a, _ := c.ancestors.Get(string(name))
	a.denied, a.child, a.qtype, a.until = false, slices.Clone(child), qtype, now.Add(ttl)
	first := wasCut && a.due.IsZero()
	if first {
		a.doubt(now)
	}
	c.ancestors.Add(string(name), a)
	return first
}

// doubt sets when a and its child are asked again: caches between nodens and the
// authority have forgotten both answers by then.
func (a *ancestor) doubt(now time.Time) {
	a.due = now.Add(min(max(a.life, a.until.Sub(now))+time.Second, maxDoubt))
}

// denialVerdict is what follows from the denial of an ancestor.
type denialVerdict int

const (
	isCut      denialVerdict = iota
	nowDoubted               // a name below exists
	doubted                  // that has been found before, or a name below existed: it is too early to ask again
	askChild                 // the ancestor is still denied: ask for the name below
)

// judge judges the denial of name, which resolvers may keep for life. It calls mark if
// name is a cut, see sawBelow.
func (c *SearchCut) judge(name []byte, now time.Time, life time.Duration, mark func()) (ancestor, denialVerdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.ancestors.Get(string(name))
	a.denied, a.life = true, life
	v := isCut
	switch {
	case !a.due.IsZero() && now.Before(a.due):
		v = doubted
	case !a.due.IsZero():
		a.doubt(now)
		v = askChild
	case a.child != nil:
		if v = doubted; now.Before(a.until) {
			v = nowDoubted
		}
		a.doubt(now)
	default:
		mark()
	}
	c.ancestors.Add(string(name), a)
	return a, v
}

// contradicted counts and logs that the upstream denies an ancestor of a name that
// exists.
func (z *boundZone) contradicted(name, child []byte) {
	z.stats.rest().cutContradictions.Add(1)
	z.Cut.log.Info("search_cut: a name exists below a name that the upstream has denied; nodens asks for both again when their TTLs have ended",
		"zone", z.Name, "denied", dnsname.String(name), "name", dnsname.String(child))
}

// contradiction waits for the answer for a name below a denied one.
type contradiction struct {
	queued      int // see waiter.place
	zone        *boundZone
	name, child []byte
}

func (w *contradiction) place() *int { return &w.queued }

func (w *contradiction) deliver(a answer) {
	c := w.zone.Cut
	switch {
	case a.err != nil: // asked again with the next denial
	case !exists(a.entry):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ancestors.Remove(string(w.name))
	case !c.off.Swap(true):
		c.log.Warn("search_cut is off for this zone until the next reload: the upstream answers NXDOMAIN for a name and has data below it (RFC 8020). Find the directive of the upstream that answers the name, or set search_cut off",
			"zone", w.zone.Name, "denied", dnsname.String(w.name), "name", dnsname.String(w.child))
	}
}

// probe looks for a cut above name, which the upstream denies: it asks for the outer
// ancestor and, if that exists, for the inner one. An inner one that has been denied
// before is asked for at once.
func (s *resolver) probe(z *boundZone, client netip.AddrPort, name []byte, outer, inner int) {
	if inner > 0 && z.Cut.denied(name) != nil {
		outer = -1
	}
	var buf [maxKeyLen]byte
	for _, off := range [2]int{outer, inner} {
		if off <= 0 {
			continue
		}
		hit := z.peek(cutKey(buf[:0], name[off:]), s.clock(), nil)
		if hit.State == cache.Fresh && exists(hit.Entry) {
			continue
		}
		if hit.State != cache.Fresh && hit.State != cache.Failed && z.Cut.claimProbe(name[off:], s.clock()) {
			w := &probe{srv: s, zone: z, client: client, name: slices.Clone(name), inner: -1}
			if off == outer {
				w.inner = inner
			}
			s.askCut(z, client, name[off:], dns.TypeA, w)
		}
		return
	}
}

// probe looks for a cut above x's name, which the upstream denies.
func (x *exchange) probe() {
	name, _ := x.question()
	outer, inner := x.zone.Cut.locate(name)
	x.srv.probe(x.zone, x.client, name, outer, inner)
}

// denied returns the innermost ancestor of name that was denied when it was last asked
// for, and that has no contradiction. It returns nil if there is none.
func (c *SearchCut) denied(name []byte) []byte {
	outer, inner := c.locate(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, off := range [2]int{inner, outer} {
		if off > 0 {
			if a, _ := c.ancestors.Get(string(name[off:])); a.denied && a.due.IsZero() && !c.off.Load() {
				return name[off:]
			}
		}
	}
	return nil
}

// notDenied records that name itself exists, or that its denial cannot be cached or is
// not of its zone: queries below it must not wait for it.
func (c *SearchCut) notDenied(name []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.ancestors.Get(string(name)); ok && a.denied {
		a.denied = false
		c.ancestors.Add(string(name), a)
	}
}

// claimProbe reports whether the caller may ask for an ancestor. The probe must end with
// probeDone.
func (c *SearchCut) claimProbe(name []byte, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.ancestors.Get(string(name))
	if c.off.Load() || c.probing >= maxProbes || now.Sub(a.probed) < probeGap {
		return false
	}
	a.probed = now
	c.ancestors.Add(string(name), a)
	c.probing++
	return true
}

func (c *SearchCut) probeDone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing--
}

// probe waits for the answer for an ancestor of name. inner is the offset of the next
// one to ask for, or -1.
type probe struct {
	queued int // see waiter.place
	srv    *resolver
	zone   *boundZone
	client netip.AddrPort
	name   []byte
	inner  int
}

func (p *probe) place() *int { return &p.queued }

func (p *probe) deliver(a answer) {
	p.zone.Cut.probeDone()
	if a.err == nil && p.inner > 0 && exists(a.entry) {
		p.srv.probe(p.zone, p.client, p.name, -1, p.inner)
	}
}
