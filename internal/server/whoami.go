package server

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/upstream"
)

// Whoami is a source that tells clients their address, port and protocol in
// the additional section.
type Whoami struct{}

// Exchange takes no question: who asks it is nobody's client.
func (Whoami) Exchange(context.Context, *dns.Msg) (*dns.Msg, error) { return nil, upstream.ErrNotMine }

func (Whoami) perClient() bool { return true }

func (Whoami) exchangeFor(_ context.Context, _ *Server, x *exchange) (sourced, error) {
	q := x.m.Question[0]
	client := x.client.Addr().Unmap().WithZone("")
	hdr := dns.RR_Header{Name: q.Name, Class: q.Qclass}
	r := sourced{Msg: new(dns.Msg).SetReply(x.m), private: true}
	r.Authoritative = true
	if client.Is4() {
		hdr.Rrtype = dns.TypeA
		r.Extra = append(r.Extra, &dns.A{Hdr: hdr, A: client.AsSlice()})
	} else {
		hdr.Rrtype = dns.TypeAAAA
		r.Extra = append(r.Extra, &dns.AAAA{Hdr: hdr, AAAA: client.AsSlice()})
	}
	hdr.Name, hdr.Rrtype = "_"+protoLabels[boolIndex(x.tcp)]+"."+q.Name, dns.TypeSRV
	if q.Name == "." {
		hdr.Name = "_" + protoLabels[boolIndex(x.tcp)] + "."
	}
	if _, ok := dns.IsDomainName(hdr.Name); ok {
		r.Extra = append(r.Extra, &dns.SRV{Hdr: hdr, Port: x.client.Port(), Target: "."})
	}
	return r, nil
}
