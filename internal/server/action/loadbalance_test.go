package action

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestLoadBalanceGroups(t *testing.T) {
	var section []dns.RR
	for _, s := range []string{
		"x. 1 IN A 192.0.2.1", "c. 1 IN CNAME b.", "x. 1 IN MX 1 m.", "b. 1 IN CNAME a.", "x. 1 IN A 10.0.0.1", "x. 1 IN TXT t",
		"x. 1 IN AAAA 2001:db8::1",
	} {
		rr, _ := dns.NewRR(s)
		section = append(section, rr)
	}
	m := &dns.Msg{Answer: section}
	l := &LoadBalance{Prefer: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("10.0.0.0/8")}}
	l.Order(m)
	want := []string{"c. CNAME b.", "b. CNAME a.", "x. TXT \"t\"", "x. AAAA 2001:db8::1", "x. A 10.0.0.1", "x. A 192.0.2.1", "x. MX 1 m."}
	var got []string
	for _, rr := range m.Answer {
		f := strings.Fields(rr.String())
		got = append(got, f[0]+" "+strings.Join(f[3:], " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
