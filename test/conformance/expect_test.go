package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// reply is a reply and its size in octets.
type reply struct {
	msg  *dns.Msg
	size int
}

// expectation is one line, or all lines of one section.
type expectation struct {
	line
	records []string // of a section, in master file form
}

// expectations joins the lines of each section.
func expectations(t *testing.T, body []line) []expectation {
	t.Helper()
	var list []expectation
	at := map[string]int{}
	for _, l := range body {
		key := l.words[0]
		if key != "answer" && key != "authority" && key != "additional" {
			list = append(list, expectation{line: l})
			continue
		}
		i, ok := at[key]
		if !ok {
			i = len(list)
			at[key] = i
			list = append(list, expectation{line: l})
		}
		if l.rest() != "none" {
			list[i].records = append(list[i].records, record(t, l).String())
		}
	}
	return list
}

func expect(t *testing.T, e expectation) func(*testing.T, reply) {
	t.Helper()
	arg := e.rest()
	switch e.words[0] {
	case "rcode":
		want := rcode(t, e.line, arg)
		return func(t *testing.T, r reply) { same(t, e, dns.RcodeToString[r.msg.Rcode], dns.RcodeToString[want]) }
	case "flags":
		return func(t *testing.T, r reply) { same(t, e, strings.Join(flagsOf(r.msg), " "), arg) }
	case "answer":
		return func(t *testing.T, r reply) { sameRecords(t, e, r.msg.Answer) }
	case "authority":
		return func(t *testing.T, r reply) { sameRecords(t, e, r.msg.Ns) }
	case "additional":
		return func(t *testing.T, r reply) {
			sameRecords(t, e, slices.DeleteFunc(slices.Clone(r.msg.Extra), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }))
		}
	case "truncated":
		n := number(t, e.line, arg)
		return func(t *testing.T, r reply) {
			if !r.msg.Truncated || len(r.msg.Answer) != n {
				t.Errorf("%v: tc is %v, %d records", e, r.msg.Truncated, len(r.msg.Answer))
			}
		}
	case "opt":
		return expectOPT(e.line, arg)
	case "options":
		return func(t *testing.T, r reply) {
			same(t, e, strings.Join(optionCodes(r.msg), " "), strings.TrimPrefix(arg, "none"))
		}
	case "ede":
		return func(t *testing.T, r reply) { same(t, e, edeOf(r.msg), arg) }
	case "within":
		n := number(t, e.line, arg)
		return func(t *testing.T, r reply) {
			if r.size > n {
				t.Errorf("%v: size is %d", e, r.size)
			}
		}
	}
	t.Fatalf("%v: %q?", e, e.words[0])
	return nil
}

func expectOPT(l line, arg string) func(*testing.T, reply) {
	return func(t *testing.T, r reply) {
		opt := r.msg.IsEdns0()
		switch {
		case arg == "none" && opt != nil, arg != "none" && opt == nil:
			t.Errorf("%v: OPT is %v", l, opt)
		case opt != nil && int(opt.UDPSize()) != atoi(strings.TrimPrefix(arg, "size=")):
			t.Errorf("%v: the size is %d", l, opt.UDPSize())
		}
	}
}

func same(t *testing.T, e expectation, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%v: is %q", e, got)
	}
}

func sameRecords(t *testing.T, e expectation, rrs []dns.RR) {
	t.Helper()
	var got []string
	for _, rr := range rrs {
		got = append(got, rr.String())
	}
	if !slices.Equal(got, e.records) {
		t.Errorf("%v: section has\n  %s\nwant\n  %s", e, strings.Join(got, "\n  "), strings.Join(e.records, "\n  "))
	}
}

func flagsOf(m *dns.Msg) []string {
	var list []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"aa", m.Authoritative}, {"tc", m.Truncated}, {"rd", m.RecursionDesired},
		{"ra", m.RecursionAvailable}, {"ad", m.AuthenticatedData}, {"cd", m.CheckingDisabled},
	} {
		if f.set {
			list = append(list, f.name)
		}
	}
	return list
}
