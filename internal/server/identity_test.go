package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestIdentity(t *testing.T) {
	for _, tc := range []struct {
		name     string
		identity string
		qname    string
		qtype    uint16
		rcode    int
		txt      []string
	}{
		{"asked", "nodens X", "ID.server.", dns.TypeTXT, dns.RcodeSuccess, []string{"nodens X"}},
		{"longest", strings.Repeat("x", 255), "id.server.", dns.TypeTXT, dns.RcodeSuccess, []string{strings.Repeat("x", 255)}},
		{"other name", "nodens X", "version.bind.", dns.TypeTXT, dns.RcodeRefused, nil},
		{"below the name", "nodens X", "a.id.server.", dns.TypeTXT, dns.RcodeRefused, nil},
		{"other type", "nodens X", "id.server.", dns.TypeA, dns.RcodeRefused, nil},
		{"none", "", "id.server.", dns.TypeTXT, dns.RcodeRefused, nil},
		{"too long", strings.Repeat("x", 256), "id.server.", dns.TypeTXT, dns.RcodeRefused, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ts := newTestServer(t, Config{Identity: tc.identity}, zone(".", nil, example(t)))
			for _, network := range []string{"udp", "tcp"} {
				for _, opts := range [][]func(*dns.Msg){nil, {withEDNS(1232, true)}} {
					m := query(tc.qname, tc.qtype, opts...)
					m.Question[0].Qclass = dns.ClassCHAOS
					r := ts.ask(t, network, m)
					var txt []string
					for _, rr := range r.Answer {
						txt = append(txt, rr.(*dns.TXT).Txt...)
					}
					if r.Rcode != tc.rcode || !slices.Equal(txt, tc.txt) || (r.IsEdns0() != nil) != (opts != nil) {
						t.Errorf("%s: %v", network, r)
					}
				}
			}
		})
	}
}
