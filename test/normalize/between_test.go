package normalize

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestResolverBetween puts a caching resolver between the pod and nodens. A
// synthesised NXDOMAIN for A and AAAA must not hide records of other types of the name
// there.
func TestResolverBetween(t *testing.T) {
	t.Parallel()
	others := map[uint16]string{
		dns.TypeMX: "MX 10 mail.example.", dns.TypeTXT: `TXT "text"`, dns.TypeSRV: "SRV 1 1 80 mail.example.", dns.TypeHTTPS: "HTTPS 1 . alpn=h2",
	}
	c, u := nodeWith(t, buildRace, func(q *dns.Msg, _ string) *dns.Msg {
		if text := others[q.Question[0].Qtype]; text != "" {
			return lab.Reply(q, q.Question[0].Name+" 60 IN "+text)
		}
		return lab.Denial(q, dns.RcodeSuccess, suffix)
	}, "")
	for _, between := range []struct {
		name, addr string
		rcode      int
		start      func(address string)
	}{
		{"dnsmasq", "127.0.0.2", dns.RcodeNameError, func(address string) {
			lab.StartDnsmasq(t, c.pod, address, "server="+localIP+"\ncache-size=1000\n")
		}},
		// It sets DO, and such queries are not normalised.
		{"unbound", "127.0.0.3", dns.RcodeSuccess, func(address string) {
			lab.StartUnbound(t, c.pod, address, "", "forward-zone:\n\tname: \".\"\n\tforward-addr: "+localIP+"\n")
		}},
	} {
		between.start(between.addr)
		name, at := "mail-"+between.name+"."+suffix, between.addr+":53"
		for round := range 2 {
			for _, qtype := range bothTypes {
				// Then dnsmasq may answer from records that it knows.
				if r := c.ask(t, at, name, qtype); round == 0 && r.Rcode != between.rcode {
					t.Errorf("%s, %s: %v, want rcode %d", between.name, dns.Type(qtype), r, between.rcode)
				}
			}
			for qtype := range others {
				if r := c.ask(t, at, name, qtype); len(r.Answer) != 1 {
					t.Errorf("%s hides the %s record: %v", between.name, dns.Type(qtype), r)
				}
			}
		}
		if n := u.count(name, dns.TypeA); n != 1 {
			t.Errorf("%s: %d queries at the upstream, want 1", between.name, n)
		}
	}
}
