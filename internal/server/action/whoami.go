package action

import "github.com/miekg/dns"

// Whoami is a source that returns the client's address, port and protocol in
// the additional section.
type Whoami struct{}

// PerClient reports that the answer depends on the client.
func (Whoami) PerClient() bool { return true }

// Answer answers every question.
func (Whoami) Answer(r *Request) (Reply, error) {
	q := r.Msg.Question[0]
	client := r.Client.Addr().Unmap().WithZone("")
	hdr := dns.RR_Header{Name: q.Name, Class: q.Qclass}
	m := new(dns.Msg).SetReply(r.Msg)
	m.Authoritative = true
	if client.Is4() {
		hdr.Rrtype = dns.TypeA
		m.Extra = append(m.Extra, &dns.A{Hdr: hdr, A: client.AsSlice()})
	} else {
		hdr.Rrtype = dns.TypeAAAA
		m.Extra = append(m.Extra, &dns.AAAA{Hdr: hdr, AAAA: client.AsSlice()})
	}
	hdr.Name, hdr.Rrtype = "_"+protocol(r.TCP)+"."+q.Name, dns.TypeSRV
	if q.Name == "." {
		hdr.Name = "_" + protocol(r.TCP) + "."
	}
	if _, ok := dns.IsDomainName(hdr.Name); ok {
		m.Extra = append(m.Extra, &dns.SRV{Hdr: hdr, Port: r.Client.Port(), Target: "."})
	}
	return Reply{Msg: m, Private: true}, nil
}

func protocol(tcp bool) string {
	if tcp {
		return "tcp"
	}
	return "udp"
}
