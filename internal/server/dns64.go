package server

import (
	"net/netip"

	"github.com/miekg/dns"
)

// DNS64 makes AAAA records of A records for names that have no AAAA of their
// own (RFC 6147).
type DNS64 struct {
	Prefix       netip.Prefix // /32, /40, /48, /56, /64 or /96
	TranslateAll bool         // names with AAAA records as well
	AllowIPv4    bool         // clients that ask over IPv4 as well
}

// maxDNS64TTL bounds records in seconds where no SOA does, RFC 6147 §5.1.7.
const maxDNS64TTL = 600

// wants reports whether q's answer may be translated. One that the client
// validates itself is not (RFC 6147 §5.5).
func (d *DNS64) wants(q *Query) bool {
	return d != nil && q.qtype == dns.TypeAAAA && q.qclass == dns.ClassINET && !q.cd() &&
		(d.AllowIPv4 || !q.client.Addr().Unmap().Is4())
}

// needs reports whether m, the answer for AAAA, is to be translated. Every
// rcode but NXDOMAIN counts as an empty answer (RFC 6147 §5.1.2).
func (d *DNS64) needs(m *dns.Msg) bool {
	switch {
	case m.Rcode == dns.RcodeNameError:
		return false
	case d.TranslateAll:
		return true
	}
	for _, rr := range m.Answer {
		// RFC 6147 §5.1.4: a mapped IPv4 address is no IPv6 address.
		if aaaa, ok := rr.(*dns.AAAA); ok && aaaa.AAAA.To4() == nil {
			return false
		}
	}
	return true
}

// translate answers r's question as DNS64 does, or as it is where DNS64 has no
// say.
func (s *Server) translate(j *job, r *rewriting) (message, outcome) {
	m, o := s.rewrite(j, r)
	q := r.q
	d := q.zone.actions().DNS64
	if o.dropped || !d.wants(q) || !d.needs(m.Msg) {
		return m, o
	}
	var asked Query
	q.copyTo(&asked)
	asked.qtype = dns.TypeA
	v4, _ := s.rewrite(j, q.zone.actions().Rewrite.run(&asked))
	if v4.Msg == nil || v4.Rcode != dns.RcodeSuccess {
		return m, o
	}
	q.zone.stats.synthesised()
	return d.synthesize(m, v4), o
}

// synthesize makes the answer for AAAA out of that for A. Records of other
// types stay as they are (RFC 6147 §5.3.3).
func (d *DNS64) synthesize(v6, v4 message) message {
	ttl := soaTTL(v6.Ns)
	for i, rr := range v4.Answer {
		if a, ok := rr.(*dns.A); ok {
			hdr := a.Hdr
			hdr.Rrtype, hdr.Ttl = dns.TypeAAAA, min(hdr.Ttl, ttl)
			v4.Answer[i] = &dns.AAAA{Hdr: hdr, AAAA: d.embed(a.A.To4())}
		}
	}
	v4.AuthenticatedData, v4.Authoritative = false, false
	return v4
}

// soaTTL is the TTL of the SOA in a denial, or maxDNS64TTL.
func soaTTL(authority []dns.RR) uint32 {
	for _, rr := range authority {
		if rr.Header().Rrtype == dns.TypeSOA {
			return rr.Header().Ttl
		}
	}
	return maxDNS64TTL
}

// embed puts an IPv4 address behind the prefix, around octet 8, which stays 0
// (RFC 6052 §2.2).
func (d *DNS64) embed(v4 []byte) []byte {
	v6 := d.Prefix.Masked().Addr().As16()
	for i, at := 0, d.Prefix.Bits()/8; i < len(v4); at++ {
		if at == 8 {
			continue
		}
		v6[at] = v4[i]
		i++
	}
	return v6[:]
}
