package directives

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// zoneData has the records of the upstream. Other names below example.test do not
// exist. Names that start with "fail" get SERVFAIL.
func zoneData() []string {
	return []string{
		"a.example.test. 300 IN A 192.0.2.1",
		"a.example.test. 300 IN TXT text",
		"many.example.test. 300 IN A 192.0.2.1", "many.example.test. 300 IN A 192.0.2.2", "many.example.test. 300 IN A 192.0.2.3",
		"both.example.test. 300 IN A 192.0.2.4", "both.example.test. 300 IN AAAA 2001:db8::4",
		"short.example.test. 7 IN A 192.0.2.5",
		"alias.example.test. 300 IN CNAME a.example.test.", "alias.example.test. 300 IN A 192.0.2.1",
		"srv.example.test. 300 IN SRV 1 2 80 host.example.test.",
		"mx.example.test. 300 IN MX 10 mail.example.test.",
		"ptr.example.test. 300 IN PTR host.example.test.",
		"host.other.test. 300 IN A 192.0.2.9",
		"www.other.test. 300 IN CNAME host.other.test.",
	}
}

// answer answers from zoneData. A TXT query below options.test gets the EDNS options
// of the query, sorted by code.
func answer(q *dns.Msg) *dns.Msg {
	name := strings.ToLower(q.Question[0].Name)
	switch {
	case strings.HasPrefix(name, "fail"):
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	case strings.HasSuffix(name, ".options.test."):
		return lab.Reply(q, fmt.Sprintf("%s 300 IN TXT %q", q.Question[0].Name, sentOptions(q)))
	case strings.HasPrefix(name, "big."):
		var list []string
		for i := range 30 {
			list = append(list, fmt.Sprintf("%s 300 IN TXT \"%03d %s\"", name, i, strings.Repeat("x", 40)))
		}
		return lab.Reply(q, list...)
	}
	var found []string
	exists := false
	for _, s := range zoneData() {
		rr, err := dns.NewRR(s)
		if err != nil {
			panic(err) // a record written in a test
		}
		if rr.Header().Name != name {
			continue
		}
		exists = true
		if t := rr.Header().Rrtype; t == q.Question[0].Qtype || t == dns.TypeCNAME {
			found = append(found, s)
		}
	}
	switch {
	case len(found) > 0:
		return lab.Reply(q, found...)
	case exists:
		return lab.Denial(q, dns.RcodeSuccess, "test.")
	}
	return lab.Denial(q, dns.RcodeNameError, "test.")
}

// sentOptions returns the options of q's OPT record without cookies and keepalive,
// which are hop by hop.
func sentOptions(q *dns.Msg) string {
	var list []string
	if opt := q.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			switch e := o.(type) {
			case *dns.EDNS0_LOCAL:
				list = append(list, fmt.Sprintf("%d=%x", e.Code, e.Data))
			case *dns.EDNS0_SUBNET:
				list = append(list, "subnet="+e.String())
			case *dns.EDNS0_NSID:
				list = append(list, "nsid")
			}
		}
	}
	return strings.Join(list, " ")
}
