package conformance

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// asking is a query and how it is sent.
type asking struct {
	msg     *dns.Msg
	network string
}

func playAsk(t *testing.T, g group) func(*testing.T, *stage) {
	a := readAsking(t, g.head)
	var wants []func(*testing.T, reply)
	for _, l := range expectations(t, g.body) {
		wants = append(wants, expect(t, l))
	}
	return func(t *testing.T, s *stage) {
		r := s.ask(t, g.head, a)
		for _, w := range wants {
			w(t, r)
		}
		if t.Failed() {
			t.Fatalf("reply to %v (%d bytes)\n%v", g.head, r.size, r.msg)
		}
	}
}

func readAsking(t *testing.T, l line) asking {
	t.Helper()
	if len(l.words) < 3 {
		t.Fatalf("%v: want NAME TYPE", l)
	}
	a := asking{dns1(t, l, l.words[1], l.words[2]), "udp"}
	for _, w := range l.words[3:] {
		key, value, _ := strings.Cut(w, "=")
		set, ok := askOptions[key]
		if !ok {
			t.Fatalf("%v: %q?", l, w)
		}
		set(&a, value)
	}
	return a
}

// dns1 is a query for one name and type. TYPE123 is any type.
func dns1(t *testing.T, l line, name, qtype string) *dns.Msg {
	t.Helper()
	n, ok := dns.StringToType[qtype]
	if !ok {
		u, err := strconv.ParseUint(strings.TrimPrefix(qtype, "TYPE"), 10, 16)
		if err != nil {
			t.Fatalf("%v: type %q", l, qtype)
		}
		n = uint16(u)
	}
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), n)
}

var askOptions = map[string]func(a *asking, value string){
	"tcp":  func(a *asking, _ string) { a.network = "tcp" },
	"do":   func(a *asking, _ string) { a.opt().SetDo() },
	"cd":   func(a *asking, _ string) { a.msg.CheckingDisabled = true },
	"ad":   func(a *asking, _ string) { a.msg.AuthenticatedData = true },
	"nord": func(a *asking, _ string) { a.msg.RecursionDesired = false },
	"edns": func(a *asking, v string) {
		if v == "" {
			v = "1232"
		}
		a.opt().SetUDPSize(uint16(atoi(v)))
	},
	"class":   func(a *asking, v string) { a.msg.Question[0].Qclass = classOf(v) },
	"opcode":  func(a *asking, v string) { a.msg.Opcode = atoi(v) },
	"version": func(a *asking, v string) { a.opt().SetVersion(uint8(atoi(v))) },
	"zflags":  func(a *asking, v string) { a.opt().SetZ(uint16(atoi(v))) },
	"z":       func(a *asking, _ string) { a.msg.Zero = true },
	"option":  func(a *asking, v string) { a.opt().Option = append(a.opt().Option, option(v)) },
	"options": func(a *asking, v string) {
		code, times, _ := strings.Cut(v, "x")
		for range atoi(times) {
			a.opt().Option = append(a.opt().Option, &dns.EDNS0_LOCAL{Code: uint16(atoi(code)), Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}})
		}
	},
}

// option is the EDNS option CODE:HEX.
func option(s string) *dns.EDNS0_LOCAL {
	code, data, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(data)
	if err != nil {
		panic(err) // a mistake in the scenario
	}
	return &dns.EDNS0_LOCAL{Code: uint16(atoi(code)), Data: b}
}

// opt returns the query's OPT record, adding one if needed.
func (a *asking) opt() *dns.OPT {
	if a.msg.IsEdns0() == nil {
		a.msg.SetEdns0(1232, false)
	}
	return a.msg.IsEdns0()
}

func classOf(s string) uint16 {
	if c, ok := dns.StringToClass[s]; ok {
		return c
	}
	return uint16(atoi(strings.TrimPrefix(s, "CLASS")))
}

// atoi parses a number of a scenario.
func atoi(s string) int {
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		panic(err)
	}
	return int(n)
}

// optionCodes lists the EDNS options of m.
func optionCodes(m *dns.Msg) []string {
	opt := m.IsEdns0()
	if opt == nil {
		return nil
	}
	var codes []string
	for _, o := range opt.Option {
		codes = append(codes, fmt.Sprint(o.Option()))
	}
	return codes
}

// edeOf returns the code of m's extended error, or "none".
func edeOf(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		i := slices.IndexFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0EDE })
		if i >= 0 {
			return fmt.Sprint(opt.Option[i].(*dns.EDNS0_EDE).InfoCode)
		}
	}
	return "none"
}
