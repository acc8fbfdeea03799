package cache

import (
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// verdict says how an answer may be cached.
type verdict uint8

const (
	// uncacheable answers serve only their own query and leave the cache
	// unchanged.
	uncacheable verdict = iota
	positive
	denial
)

// classify derives the verdict from header, question and sections, not TTLs. It
// distinguishes data, NODATA and neither (RFC 2308 §2.2). A CNAME chain that ends
// without the requested type is NODATA if there is an SOA, else incomplete. NS
// without data and without SOA is a referral.
func classify(m *dns.Msg, r *records) verdict {
	if !m.Response || m.Truncated || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return uncacheable
	}
	q := m.Question[0]
	// No zone can hold types 0 and OPT, and the meta and question types (RFC 6895 §3.1).
	meta := q.Qtype == dns.TypeNone || q.Qtype == dns.TypeOPT || q.Qtype >= 128 && q.Qtype <= 255
	if meta || q.Qclass == dns.ClassANY || q.Qclass == dns.ClassNONE {
		return uncacheable
	}
	switch m.Rcode {
	case dns.RcodeNameError:
		return denial
	case dns.RcodeSuccess:
	default:
		return uncacheable
	}
	switch {
	case hasType(r.answer, q.Qtype):
		return positive
	case soaOf(r) != nil:
		return denial
	case len(r.answer) > 0 || hasType(r.authority, dns.TypeNS):
		return uncacheable
	}
	return denial
}

func hasType(rrs []dns.RR, t uint16) bool {
	for _, rr := range rrs {
		if rr.Header().Rrtype == t {
			return true
		}
	}
	return false
}

// soaOf returns the SOA of a denial, or nil.
func soaOf(r *records) *dns.SOA {
	for _, rr := range r.authority {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}

// noSOATTL is the maximum TTL, in seconds, of a denial without SOA. RFC 2308 §5
// says not to cache it, but the search paths of pods cause many such denials.
const noSOATTL = 5

// bounds are the TTL bounds of a Class in seconds.
type bounds struct {
	min, max uint32
	raise0   bool // TTL 0 is raised to min as well
}

// clamp applies the bounds. TTL 0 means "do not cache" and stays unless raise0 is
// set. The maximum wins over the minimum.
func (b bounds) clamp(ttl uint32) uint32 {
	if ttl > 0 || b.raise0 {
		ttl = max(ttl, b.min)
	}
	return min(ttl, b.max)
}

// positiveTTL clamps ttls, the result of records.ttls, and returns for how many
// seconds a positive answer is fresh. 0 means that the answer must not be cached;
// ttls are unchanged then.
//
// Only the answer section counts. Authority and additional records are separate
// RRsets of lower rank (RFC 2181 §5.4.1). If one expires before the answer, it is
// sent with TTL 0.
func positiveTTL(r *records, ttls []uint32, b bounds) uint32 {
	life := b.clamp(slices.Min(ttls[:len(r.answer)]))
	if life == 0 {
		return 0
	}
	for i, ttl := range ttls {
		ttls[i] = b.clamp(ttl)
	}
	return life
}

// denialTTL is positiveTTL for a denial. It returns the smallest of the SOA's
// TTL, the SOA's MINIMUM (RFC 2308 §5) and the TTLs of the CNAMEs before it, and
// at most noSOATTL without an SOA. No record outlives the denial, so the SOA
// shows the time left.
func denialTTL(r *records, ttls []uint32, b bounds) uint32 {
	life := uint32(math.MaxInt32)
	if len(r.answer) > 0 {
		life = slices.Min(ttls[:len(r.answer)])
	}
	if soa := soaOf(r); soa != nil {
		life = b.clamp(min(life, soaTTL(soa)))
	} else {
		life = min(life, noSOATTL, b.max)
	}
	if life == 0 {
		return 0
	}
	for i, ttl := range ttls {
		ttls[i] = min(b.clamp(ttl), life)
	}
	return life
}

func soaTTL(soa *dns.SOA) uint32 {
	return min(normalTTL(soa.Hdr.Ttl), normalTTL(soa.Minttl))
}

// records are the records of a message that an Entry contains, in wire order. The
// sections are parts of all.
type records struct {
	all                           []dns.RR
	answer, authority, additional []dns.RR
}

// sections collects the records of m that are not hop-by-hop.
func sections(m *dns.Msg) (*records, error) {
	if m == nil {
		return nil, errors.New("pack answer: no message")
	}
	r := new(records)
	r.all = make([]dns.RR, 0, len(m.Answer)+len(m.Ns)+len(m.Extra))
	r.all = append(append(r.all, m.Answer...), m.Ns...)
	for _, rr := range m.Extra {
		if rr == nil || !hopByHop(rr) {
			r.all = append(r.all, rr)
		}
	}
	for _, rr := range r.all {
		if rr == nil {
			return nil, errors.New("pack answer: nil record")
		}
	}
	n, ns := len(m.Answer), len(m.Answer)+len(m.Ns)
	r.answer, r.authority, r.additional = r.all[:n], r.all[n:ns], r.all[ns:]
	return r, nil
}

// hopByHop reports whether rr is about one message between two hosts: OPT (RFC
// 6891 §6.1.1), TSIG (RFC 8945 §5.1), SIG(0) (RFC 2931 §3).
func hopByHop(rr dns.RR) bool {
	switch rr := rr.(type) {
	case *dns.OPT, *dns.TSIG:
		return true
	case *dns.SIG:
		return rr.TypeCovered == 0
	default:
		return false
	}
}

// ttls returns the TTL of each record. A TTL with the top bit set becomes 0 (RFC
// 2181 §8). All records of an RRset get its smallest TTL (RFC 2181 §5.2).
func (r *records) ttls() []uint32 {
	ttls := make([]uint32, len(r.all))
	for i, rr := range r.all {
		ttls[i] = normalTTL(rr.Header().Ttl)
	}
	n, ns := len(r.answer), len(r.answer)+len(r.authority)
	equalise(r.answer, ttls[:n])
	equalise(r.authority, ttls[n:ns])
	equalise(r.additional, ttls[ns:])
	return ttls
}

func normalTTL(ttl uint32) uint32 {
	if ttl > math.MaxInt32 {
		return 0
	}
	return ttl
}

// rrset identifies an RRset within a section. Signatures of different types
// have their own TTLs (RFC 4034 §3).
type rrset struct {
	name    string
	rrtype  uint16
	class   uint16
	covered uint16
}

func rrsetOf(rr dns.RR) rrset {
	h := rr.Header()
	s := rrset{name: strings.ToLower(h.Name), rrtype: h.Rrtype, class: h.Class}
	if sig, ok := rr.(*dns.RRSIG); ok {
		s.covered = sig.TypeCovered
	}
	return s
}

// equalise lowers the TTLs of each RRset to the smallest in it.
func equalise(rrs []dns.RR, ttls []uint32) {
	if len(rrs) < 2 {
		return
	}
	smallest := make(map[rrset]uint32, len(rrs))
	for i, rr := range rrs {
		s := rrsetOf(rr)
		if ttl, ok := smallest[s]; !ok || ttls[i] < ttl {
			smallest[s] = ttls[i]
		}
	}
	for i, rr := range rrs {
		ttls[i] = smallest[rrsetOf(rr)]
	}
}
