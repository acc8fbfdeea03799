package conformance

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// rule is an upstream's reply to some questions.
type rule struct {
	name, qtype string // * matches any
	proto       string // empty: both
	edns        bool   // the query has an OPT record
	do, cd, ad  bool   // set in the query
	nth         int    // number among the queries that match the rest, from 1; 0 matches all

	rcode                         int
	flags                         []string
	answer, authority, additional []dns.RR
	noOPT, bare                   bool
	options                       []dns.EDNS0
	first                         string
	twice, drop, hangUp, reset    bool

	fitted int // number of matching queries, guarded by upstream.mu
}

func readRules(t *testing.T, path, text string) []rule {
	t.Helper()
	var list []rule
	for _, g := range groups(t, path, text) {
		if g.head.words[0] != "match" || len(g.head.words) < 3 {
			t.Fatalf("%v: want match NAME TYPE", g.head)
		}
		r := rule{name: g.head.words[1], qtype: g.head.words[2], flags: []string{"ra"}}
		for _, w := range g.head.words[3:] {
			r.narrow(t, g.head, w)
		}
		for _, l := range g.body {
			r.reply(t, l)
		}
		list = append(list, r)
	}
	return list
}

func (r *rule) narrow(t *testing.T, l line, word string) {
	t.Helper()
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "udp", "tcp":
		r.proto = key
	case "edns":
		r.edns = true
	case "do":
		r.do = true
	case "cd":
		r.cd = true
	case "ad":
		r.ad = true
	case "nth":
		r.nth = number(t, l, value)
	default:
		t.Fatalf("%v: %q?", l, word)
	}
}

func (r *rule) reply(t *testing.T, l line) {
	t.Helper()
	switch l.words[0] {
	case "rcode":
		r.rcode = rcode(t, l, l.words[1])
	case "flags":
		r.flags = l.words[1:]
	case "answer":
		r.answer = append(r.answer, record(t, l))
	case "authority":
		r.authority = append(r.authority, record(t, l))
	case "additional":
		r.additional = append(r.additional, record(t, l))
	case "bare":
		r.bare = true
	case "noopt":
		r.noOPT = true
	case "ede":
		code := uint16(number(t, l, l.words[1]))
		r.options = append(r.options, &dns.EDNS0_EDE{InfoCode: code, ExtraText: strings.Join(l.words[2:], " ")})
	case "option":
		r.options = append(r.options, option(l.words[1]))
	case "first":
		r.first = l.words[1]
		if !slices.Contains([]string{"id", "question", "type", "class", "port", "garbage", "empty"}, r.first) {
			t.Fatalf("%v: no such reply", l)
		}
	case "twice":
		r.twice = true
	case "drop":
		r.drop = true
	case "close":
		r.hangUp = true
	case "reset":
		r.hangUp, r.reset = true, true
	default:
		t.Fatalf("%v: %q?", l, l.words[0])
	}
}

// fits reports whether the rule matches a query except for nth, and counts it.
func (r *rule) fits(proto string, q *dns.Msg) bool {
	question := q.Question[0]
	opt := q.IsEdns0()
	switch {
	case r.name != "*" && !strings.EqualFold(r.name, question.Name),
		r.qtype != "*" && r.qtype != dns.Type(question.Qtype).String(),
		r.proto != "" && r.proto != proto,
		r.edns && opt == nil,
		r.do && (opt == nil || !opt.Do()),
		r.cd && !q.CheckingDisabled, r.ad && !q.AuthenticatedData:
		return false
	}
	r.fitted++
	return r.nth == 0 || r.nth == r.fitted
}

// message is the reply to q. It shares no record with r.
func (r *rule) message(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Rcode = r.rcode
	for _, f := range r.flags {
		switch f {
		case "aa":
			m.Authoritative = true
		case "tc":
			m.Truncated = true
		case "ra":
			m.RecursionAvailable = true
		case "ad":
			m.AuthenticatedData = true
		}
	}
	if r.bare {
		return &dns.Msg{MsgHdr: m.MsgHdr}
	}
	m.Answer, m.Ns, m.Extra = copies(r.answer), copies(r.authority), copies(r.additional)
	if opt := q.IsEdns0(); opt != nil && !r.noOPT {
		m.SetEdns0(4096, opt.Do())
		m.IsEdns0().Option = r.options
	}
	return m
}

func copies(rrs []dns.RR) []dns.RR {
	var list []dns.RR
	for _, rr := range rrs {
		list = append(list, dns.Copy(rr))
	}
	return list
}

func number(t *testing.T, l line, s string) int {
	t.Helper()
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		t.Fatalf("%v: %v", l, err)
	}
	return int(n)
}

func rcode(t *testing.T, l line, s string) int {
	t.Helper()
	if s == "BADVERS" { // has the same number as BADSIG
		return dns.RcodeBadVers
	}
	n, ok := dns.StringToRcode[s]
	if !ok {
		t.Fatalf("%v: no rcode %q", l, s)
	}
	return n
}

// record is the record in the rest of the line.
func record(t *testing.T, l line) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(l.rest())
	if err != nil || rr == nil {
		t.Fatalf("%v: record: %v", l, err)
	}
	return rr
}
