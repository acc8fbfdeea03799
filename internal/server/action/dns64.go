package action

import (
	"net/netip"

	"github.com/miekg/dns"
)

// DNS64 makes AAAA records from the A records of names that have no AAAA record
// (RFC 6147).
type DNS64 struct {
	Prefix       netip.Prefix // /32, /40, /48, /56, /64 or /96
	TranslateAll bool         // also names with AAAA records
	AllowIPv4    bool         // also for clients that query over IPv4
}

// maxDNS64TTL bounds the TTL of records in seconds if no SOA record does, RFC
// 6147 §5.1.7.
const maxDNS64TTL = 600

// Wants reports whether the answer to a client's question may be translated. The
// answer is not translated if the client validates it (CD, RFC 6147 §5.5). A nil
// DNS64 translates nothing.
func (d *DNS64) Wants(qtype, qclass uint16, cd bool, client netip.Addr) bool {
	return d != nil && qtype == dns.TypeAAAA && qclass == dns.ClassINET && !cd &&
		(d.AllowIPv4 || !client.Unmap().Is4())
}

// Needs reports whether m, the answer for AAAA, must be translated. Every
// rcode but NXDOMAIN counts as an empty answer (RFC 6147 §5.1.2).
func (d *DNS64) Needs(m *dns.Msg) bool {
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

// Synthesize turns v4, the answer for A, into the answer for AAAA. authority is
// that of the answer for AAAA, whose SOA record bounds the TTL. Records of
// other types stay as they are (RFC 6147 §5.3.3).
func (d *DNS64) Synthesize(v4 *dns.Msg, authority []dns.RR) {
	ttl := soaTTL(authority)
	for i, rr := range v4.Answer {
		if a, ok := rr.(*dns.A); ok {
			hdr := a.Hdr
			hdr.Rrtype, hdr.Ttl = dns.TypeAAAA, min(hdr.Ttl, ttl)
			v4.Answer[i] = &dns.AAAA{Hdr: hdr, AAAA: d.embed(a.A.To4())}
		}
	}
	v4.AuthenticatedData, v4.Authoritative = false, false
}

// soaTTL is the TTL of the SOA record in a denial, or maxDNS64TTL.
func soaTTL(authority []dns.RR) uint32 {
	for _, rr := range authority {
		if rr.Header().Rrtype == dns.TypeSOA {
			return rr.Header().Ttl
		}
	}
	return maxDNS64TTL
}

// embed puts an IPv4 address behind the prefix. It skips byte 8, which stays 0
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
