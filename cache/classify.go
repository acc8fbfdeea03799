package cache

import "github.com/miekg/dns"

// verdict is what an answer is good for.
type verdict uint8

const (
	// uncacheable answers serve their own query only and say nothing about
	// what is cached.
	uncacheable verdict = iota
	positive
	denial
)

// classify judges m by its header, question and sections, not by its TTLs.
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

// classifyNoError tells data, NODATA, and neither apart (RFC 2308 §2.2). A
// chain of CNAMEs that ends without the asked type is NODATA with an SOA and
// incomplete without. No data and NS without SOA is a referral.
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

// metaType reports types that no zone holds: 0 and OPT, and 128–255, the range
// of meta and question types (RFC 6895 §3.1).
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

// soaOf returns the SOA that a denial rests on, or nil.
func soaOf(r *records) *dns.SOA {
	for _, rr := range r.authority() {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}
