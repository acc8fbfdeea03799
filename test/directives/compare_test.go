package directives

import (
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

const forward = "  forward . 127.0.0.53:53\n}\n"

func edns(m *dns.Msg) { m.SetEdns0(1232, false) }

func asksNSID(m *dns.Msg) {
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
}

// ask returns questions of one type.
func ask(qtype uint16, names ...string) []question {
	var list []question
	for _, n := range names {
		list = append(list, question{name: n, qtype: qtype})
	}
	return list
}

func join(lists ...[]question) (all []question) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// with changes the questions.
func with(change func(*question), list []question) []question {
	for i := range list {
		change(&list[i])
	}
	return list
}

func overIPv6(q *question) { q.v6 = true }
func overTCP(q *question)  { q.tcp = true }
func withEDNS(q *question) { q.bits = edns }

func scenarios() []scenario {
	return []scenario{
		{
			name: "template", corefile: `test {
  BIND
  template IN A ip.test {
    match "^ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]ip[.]test[.]$"
    match ^one
    answer "{{ .Name }} 60 IN A {{ if .Group.a }}{{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}{{ else }}192.0.2.111{{ end }}"
    fallthrough forward.ip.test
  }
  template IN TXT data.test {
    match "^(?P<first>[a-z]+)[.]([^.]*)"
    answer "{{ .Name }} 60 IN TXT \"{{ .Zone }} {{ .Class }} {{ .Type }} {{ .Group.first }} {{ index .Match 0 }} {{ len .Match }} {{ .Question.Name }} {{ .Remote }} {{ parseInt \"ff\" 16 8 }}\""
  }
  template ANY AAAA nov6.test {
    rcode NOERROR
  }
  template ANY ANY blocked.test {
    rcode NXDOMAIN
    authority "blocked.test. 60 IN SOA ns.blocked.test. h.blocked.test. 1 60 60 60 60"
    ederror 17 "Blocked by policy"
  }
  template IN MX sections.test {
    answer "{{ .Name }} 60 IN MX 10 a.sections.test." "{{ .Name }} 60 IN MX 20 b.sections.test."
    additional "a.sections.test. 60 IN A 192.0.2.1"
    authority "sections.test. 60 IN NS ns.sections.test."
  }
  template IN A alias.test {
    match ^internal
    answer "{{ .Name }} 60 IN CNAME ip-192-0-2-7.ip.test."
    fallthrough
  }
  template IN A alias.test {
    answer "{{ .Name }} 60 IN CNAME host.other.test."
  }
  template IN A broken.test {
    answer "{{ .Name }} 60 IN A not-an-address"
  }
  template IN A servfail.test {
    rcode SERVFAIL
  }
` + forward,
			questions: join(
				ask(dns.TypeA, "ip-10-1-2-3.ip.test", "IP-10-1-2-3.ip.test", "one.ip.test", "two.ip.test", "two.forward.ip.test", "ip-1-2-3-999.ip.test",
					"a.example.test", "x.blocked.test", "x.alias.test", "internal.alias.test", "x.broken.test", "x.servfail.test"),
				ask(dns.TypeAAAA, "ip-10-1-2-3.ip.test", "x.nov6.test", "both.example.test"),
				ask(dns.TypeTXT, "abc.data.test", "x1.data.test", "abc.def.data.test", "data.test"),
				ask(dns.TypeMX, "x.sections.test"), with(withEDNS, ask(dns.TypeMX, "x.blocked.test")),
			),
			differs: map[string]string{
				"x.blocked.test A": "CoreDNS sends an OPT record for the Extended DNS Error to a client without EDNS, which RFC 6891, section 7 forbids",
			},
		},
		{
			name: "template with cache", corefile: `. {
  BIND
  cache 30
  template IN A {
    match "^t[0-9]*[.]example"
    answer "{{ .Name }} 600 IN A 192.0.2.1"
    fallthrough
  }
  template IN TXT example.test {
    rcode NXDOMAIN
    ederror 15
  }
` + forward,
			questions: join(
				ask(dns.TypeA, "t1.example.test", "T1.example.test", "a.example.test", "none.example.test"),
				with(withEDNS, ask(dns.TypeTXT, "a.example.test")),
			),
			differs: map[string]string{
				"a.example.test TXT": "CoreDNS's cache loses the Extended DNS Error; nodens does not cache such an answer",
			},
		},
		{
			name: "hosts", corefile: `. {
  BIND
  hosts /nonexistent example.test other.test {
    192.0.2.81 h.example.test H2.example.test
    2001:db8::81 h.example.test
    192.0.2.82 outside.invalid
    192.0.2.83 *.w.example.test
    192.0.2.84 own.w.example.test
    2001:db8::85 v6.w.example.test *.W6.example.test
    ::ffff:192.0.2.86 mapped.example.test
    ttl 77
    fallthrough a.example.test both.example.test
  }
` + forward,
			questions: join(
				ask(dns.TypeA, "h.example.test", "H2.Example.test", "none.example.test", "a.example.test", "outside.invalid"),
				ask(dns.TypeA, "x.w.example.test", "X.W.example.test", "own.w.example.test", "v6.w.example.test", "w.example.test", "x.y.w.example.test",
					"*.w.example.test", "x.w6.example.test", "mapped.example.test"),
				ask(dns.TypeAAAA, "x.w.example.test", "v6.w.example.test", "x.w6.example.test", "mapped.example.test"),
				ask(dns.TypeTXT, "x.w.example.test"),
				ask(dns.TypeAAAA, "h.example.test", "h2.example.test", "both.example.test"),
				ask(dns.TypeTXT, "h.example.test", "a.example.test"),
				ask(dns.TypePTR, "81.2.0.192.in-addr.arpa", "82.2.0.192.in-addr.arpa", "83.2.0.192.in-addr.arpa", "86.2.0.192.in-addr.arpa", "9.9.9.9.in-addr.arpa"),
			),
			differs: map[string]string{},
		},
		{
			name: "hosts falls through", corefile: `. {
  BIND
  hosts {
    192.0.2.81 a.example.test
    no_reverse
    ttl 5
    reload 0
    fallthrough
    fallthrough_unsupported
  }
` + forward,
			questions: join(
				ask(dns.TypeA, "a.example.test", "both.example.test", "none.example.test", "localhost"),
				ask(dns.TypeTXT, "a.example.test"), ask(dns.TypeAAAA, "a.example.test"),
				ask(dns.TypePTR, "81.2.0.192.in-addr.arpa"),
			),
		},
		{
			name: "rewrite name", corefile: `. {
  BIND
  rewrite name old.test a.example.test
  rewrite name prefix pre. a.
  rewrite name prefix half- whole-
  rewrite stop name suffix .suffix.test .example.test answer auto
  rewrite stop name suffix .bare.test .example.test
  rewrite name substring middle.sub.test example.test answer auto
  rewrite name regex (.*)\.rx\.test {1}.example.test answer name (.*)\.example\.test {1}.rx.test
  rewrite stop {
    name regex ^(.*)\.values\.test$ {1}.example.test.
    answer name (.*)\.example\.test {1}.values.test
    answer value (.*)\.example\.test {1}.values.test
  }
  rewrite name regex ^(.*)\.dot\.test\.$ {1}.example.test answer auto
  rewrite continue name exact first.test second.test
  rewrite continue name exact second.test alias.example.test
  rewrite name exact empty.test none.example.test
  rewrite name regex ^(too)\.long\.test\.$ {0}..x
` + forward,
			questions: join(
				ask(dns.TypeA, "old.test", "OLD.test", "pre.example.test", "half-x.test", "a.suffix.test", "alias.suffix.test", "none.suffix.test", "a.bare.test",
					"a.middle.sub.test", "a.rx.test", "none.rx.test", "a.values.test", "a.dot.test", "alias.dot.test", "first.test", "empty.test",
					"too.long.test", "a.example.test", "many.suffix.test", "fail.suffix.test"),
				ask(dns.TypeSRV, "srv.suffix.test", "srv.rx.test", "srv.values.test", "srv.dot.test"),
				ask(dns.TypeMX, "mx.suffix.test", "mx.values.test"), ask(dns.TypePTR, "ptr.suffix.test"),
			),
		},
		{
			name: "rewrite with cache", corefile: `. {
  BIND
  cache 30
  rewrite name suffix .suffix.test .example.test answer auto
  rewrite ttl exact a.example.test 60
` + forward,
			questions: ask(dns.TypeA, "a.suffix.test", "a.example.test", "A.suffix.test", "none.suffix.test", "none.example.test", "alias.suffix.test"),
		},
		{
			name: "rewrite the rest", corefile: `. {
  BIND
  rewrite continue ttl exact a.example.test 60
  rewrite continue ttl prefix many. 0-100
  rewrite continue ttl suffix alias.example.test 1000-2000
  rewrite continue ttl substring short 30-
  rewrite continue ttl regex ^both -200
  rewrite continue rcode suffix none.example.test NXDOMAIN NOERROR
  rewrite continue rcode regex ^fail.refused SERVFAIL REFUSED
  rewrite continue rcode exact a.example.test 3 0
  rewrite type MX TXT
  rewrite class CH IN
` + forward,
			questions: join(
				ask(dns.TypeA, "a.example.test", "many.example.test", "alias.example.test", "short.example.test", "both.example.test", "x.none.example.test",
					"gone.example.test", "fail.refused.test", "fail.other.test"),
				ask(dns.TypeMX, "a.example.test"), with(withEDNS, ask(dns.TypeAAAA, "both.example.test")),
				[]question{{name: "a.example.test", qtype: dns.TypeTXT, class: dns.ClassCHAOS}},
			),
		},
		{
			name: "rewrite cname", corefile: `. {
  BIND
  rewrite continue cname exact a.example.test. host.other.test.
  rewrite continue cname suffix .other.test. .example.test.
  rewrite continue cname regex ^nothing {0}
  rewrite name exact renamed.test www.other.test
` + forward,
			questions: join(
				ask(dns.TypeA, "alias.example.test", "a.example.test", "www.other.test", "renamed.test", "none.example.test"),
				ask(dns.TypeTXT, "alias.example.test", "a.example.test"), ask(dns.TypeCNAME, "alias.example.test"),
			),
		},
		{
			name: "rewrite edns0", corefile: `set.options.test {
  BIND
  rewrite edns0 local set 0xffee 0x61626364
` + forward + `text.options.test {
  BIND
  rewrite edns0 local append 65001 hello
` + forward + `several.options.test {
  BIND
  rewrite continue edns0 local set 65001 one
  rewrite continue edns0 local set 65002 two
  rewrite edns0 nsid set
` + forward + `variables.options.test {
  BIND
  rewrite continue edns0 local set 65001 {qname}
  rewrite continue edns0 local set 65002 {qtype}
  rewrite continue edns0 local set 65003 {client_ip}
  rewrite continue edns0 local set 65004 {protocol}
  rewrite continue edns0 local set 65005 {server_port}
` + forward + `subnet.options.test {
  BIND
  rewrite edns0 subnet set 24 56
` + forward + `replace.options.test {
  BIND
  rewrite continue edns0 local replace 65001 new
  rewrite edns0 local unset 65002
` + forward,
			questions: join(
				ask(dns.TypeTXT, "a.set.options.test", "a.text.options.test", "a.several.options.test", "a.variables.options.test", "a.subnet.options.test", "a.replace.options.test"),
				with(overTCP, ask(dns.TypeTXT, "b.variables.options.test")), with(overIPv6, ask(dns.TypeTXT, "b.subnet.options.test")),
				[]question{{name: "c.replace.options.test", qtype: dns.TypeTXT, bits: func(m *dns.Msg) {
					m.SetEdns0(1232, false)
					m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("old")}, &dns.EDNS0_LOCAL{Code: 65002, Data: []byte("old")}}
				}}},
			),
		},
		{
			name: "dns64", corefile: `. {
  BIND
  cache 300
  dns64
` + forward,
			questions: join(
				with(overIPv6, ask(dns.TypeAAAA, "a.example.test", "both.example.test", "none.example.test", "alias.example.test", "short.example.test", "srv.example.test", "fail.example.test")),
				with(overIPv6, ask(dns.TypeA, "a.example.test")), ask(dns.TypeAAAA, "many.example.test"),
			),
			differs: map[string]string{
				"fail.example.test AAAA": "CoreDNS turns the failure of both types into an empty answer; nodens answers with the failure",
			},
		},
		{
			name: "dns64 with options", corefile: `. {
  BIND
  dns64 {
    prefix 2001:db8:64::/64
    translate_all
    allow_ipv4
  }
` + forward,
			questions: ask(dns.TypeAAAA, "a.example.test", "both.example.test", "none.example.test"),
		},
		{
			name: "acl", corefile: `. {
  BIND
  acl example.test {
    allow type TXT
    block type MX net 127.0.0.0/8
    filter type SRV
  }
  acl other.test {
    block net fd00::/16
  }
` + forward,
			questions: join(
				with(withEDNS, ask(dns.TypeMX, "mx.example.test")), with(withEDNS, ask(dns.TypeSRV, "srv.example.test")),
				ask(dns.TypeTXT, "a.example.test"), ask(dns.TypeA, "a.example.test", "host.other.test"),
				with(func(q *question) { q.v6, q.bits = true, edns }, ask(dns.TypeA, "www.other.test")), with(overIPv6, ask(dns.TypeMX, "a.example.test")),
			),
		},
		{
			name: "loadbalance", corefile: `. {
  BIND
  cache
  loadbalance round_robin
` + forward,
			questions: join(ask(dns.TypeA, "many.example.test", "alias.example.test", "none.example.test"), ask(dns.TypeMX, "mx.example.test")),
		},
		{
			name: "nsid", corefile: `. {
  BIND
  cache
  nsid node of the tests
` + forward,
			questions: []question{
				{name: "a.example.test", qtype: dns.TypeA, bits: asksNSID}, {name: "none.example.test", qtype: dns.TypeA, bits: asksNSID},
				{name: "many.example.test", qtype: dns.TypeA, bits: edns}, {name: "both.example.test", qtype: dns.TypeA},
			},
		},
		{
			name: "bufsize", corefile: `. {
  BIND
  cache
  bufsize 512
` + forward,
			questions: join(ask(dns.TypeA, "a.example.test"), with(overTCP, ask(dns.TypeTXT, "big.example.test"))),
		},
		{
			name: "import, snippets, operation", corefile: `(common) {
  BIND
  errors {
    stacktrace
    consolidate 5m ".* i/o timeout$" warning
  }
  log . "{common} {/log/class}" {
    class error denial
  }
  metadata
  debug
  timeouts {
    read 3
    write 5s
    idle 10s
  }
}
example.test {
  import common
  cache {
    success 100 60
    denial 100 5
    servfail 0s
  }
` + forward + `other.test {
  import common
  cache 30 {
    disable denial
    keepttl
  }
` + forward,
			questions: ask(dns.TypeA, "a.example.test", "none.example.test", "host.other.test", "none.other.test", "fail.other.test"),
		},
	}
}

// TestAgainstCoreDNS starts both servers with one Corefile, in which each scenario has
// its own port.
func TestAgainstCoreDNS(t *testing.T) {
	var corefile strings.Builder
	port := func(i int) string { return strconv.Itoa(5300 + i) }
	for i, s := range scenarios() {
		corefile.WriteString(s.onPort(port(i)))
	}
	p := startPair(t, corefile.String())
	for i, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			onPort := *p
			onPort.port = port(i)
			s.check(t, &onPort)
		})
	}
}
