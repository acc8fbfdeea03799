package cache

import (
	"errors"
	"math"
	"strings"

	"github.com/miekg/dns"
)

// records are the records of a message that an Entry contains, in wire order.
type records struct {
	all         []dns.RR
	answers     int
	authorities int
}

// sections collects the records of m that are not hop-by-hop.
func sections(m *dns.Msg) (*records, error) {
	if m == nil {
		return nil, errors.New("pack answer: no message")
	}
	r := &records{answers: len(m.Answer), authorities: len(m.Ns)}
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

func (r *records) answer() []dns.RR { return r.all[:r.answers] }

func (r *records) authority() []dns.RR { return r.all[r.answers : r.answers+r.authorities] }

func (r *records) additional() []dns.RR { return r.all[r.answers+r.authorities:] }

// ttls returns the TTL of each record. A TTL with the top bit set becomes 0 (RFC
// 2181 §8). All records of an RRset get its smallest TTL (RFC 2181 §5.2).
func (r *records) ttls() []uint32 {
	ttls := make([]uint32, len(r.all))
	for i, rr := range r.all {
		ttls[i] = normalTTL(rr.Header().Ttl)
	}
	equalise(r.answer(), ttls[:r.answers])
	equalise(r.authority(), ttls[r.answers:r.answers+r.authorities])
	equalise(r.additional(), ttls[r.answers+r.authorities:])
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
