package normalize

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestResolverBetween puts a caching resolver between the pod and nodens. A
// synthesised NXDOMAIN for A and AAAA must not hide the MX records of the name
// there.
func TestResolverBetween(t *testing.T) {
	t.Parallel()
	c, u := nodeWith(t, buildRace, func(q *dns.Msg, _ string) *dns.Msg {
		if q.Question[0].Qtype == dns.TypeMX {
			return lab.Reply(q, q.Question[0].Name+" 60 IN MX 10 mail.example.")
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
		for range 2 {
			for _, qtype := range bothTypes {
				if r := c.ask(t, at, name, qtype); r.Rcode != between.rcode {
					t.Errorf("%s, %s: %v, want rcode %d", between.name, dns.Type(qtype), r, between.rcode)
				}
			}
			if r := c.ask(t, at, name, dns.TypeMX); len(lab.Data(r, dns.TypeMX)) != 1 {
				t.Errorf("%s hides the MX record: %v", between.name, r)
			}
		}
		if n := u.count(name, dns.TypeA); n != 1 {
			t.Errorf("%s: %d queries at the upstream, want 1", between.name, n)
		}
	}
}
