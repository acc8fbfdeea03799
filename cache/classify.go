package cache

import "github.com/miekg/dns"

// verdict says how an answer may be cached.
type verdict uint8

const (
	// uncacheable answers serve only their own query and leave the cache
	// unchanged.
	uncacheable verdict = iota
	positive
	denial
)

// classify derives the verdict from header, question and sections, not TTLs.
func classify(m *dns.Msg, r *records) verdict {
	if !m.Response || m.Truncated || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return uncacheable
	}
	q := m.Question[0]
	if metaType(q.Qtype) || q.Qclass == dns.ClassANY || q.Qclass == dns.ClassNONE {
		return uncacheable
	}
	switch m.Rcode {
	case dns.RcodeNameError:
		return denial
	case dns.RcodeSuccess:
		return classifyNoError(q, r)
	default:
		return uncacheable
	}
}

// classifyNoError distinguishes data, NODATA and neither (RFC 2308 §2.2). A
// CNAME chain that ends without the requested type is NODATA if there is an SOA,
// else incomplete. NS without data and without SOA is a referral.
func classifyNoError(q dns.Question, r *records) verdict {
	if hasType(r.answer(), q.Qtype) {
		return positive
	}
	if soaOf(r) != nil {
		return denial
	}
	if r.answers > 0 || hasType(r.authority(), dns.TypeNS) {
		return uncacheable
	}
	return denial
}

// metaType reports whether no zone can hold t: 0, OPT, and the meta and question
// types 128–255 (RFC 6895 §3.1).
func metaType(t uint16) bool {
	return t == dns.TypeNone || t == dns.TypeOPT || t >= 128 && t <= 255
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
	for _, rr := range r.authority() {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}
