package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// step is a line of the steps with its expectations. It is checked when it is
// read, so that a scenario does not stop halfway at a typing error.
type step struct {
	line
	play func(*testing.T, *stage)
}

// player returns what a step does, from its line and the lines below it.
type player func(*testing.T, group) func(*testing.T, *stage)

var players = map[string]player{
	"ask":     playAsk,
	"advance": playAdvance,
	"down":    playDown,
	"up":      playUp,
	"use":     playUse,
	"asked":   playAsked,
	"seen":    playSeen,
}

func readSteps(t *testing.T, path, text string) []step {
	t.Helper()
	var list []step
	for _, g := range groups(t, path, text) {
		p, ok := players[g.head.words[0]]
		if !ok {
			t.Fatalf("%v: unknown step", g.head)
		}
		list = append(list, step{g.head, p(t, g)})
	}
	return list
}

func words(t *testing.T, l line, n int) []string {
	t.Helper()
	if len(l.words) != n+1 {
		t.Fatalf("%v: want %d arguments", l, n)
	}
	return l.words[1:]
}

func playAdvance(t *testing.T, g group) func(*testing.T, *stage) {
	d := words(t, g.head, 1)[0]
	return func(t *testing.T, s *stage) { s.advance(t, d) }
}

func playDown(t *testing.T, g group) func(*testing.T, *stage) {
	ip := words(t, g.head, 1)[0]
	return func(t *testing.T, s *stage) { s.upstream(t, ip).down() }
}

func playUp(t *testing.T, g group) func(*testing.T, *stage) {
	ip := words(t, g.head, 1)[0]
	return func(t *testing.T, s *stage) { s.upstream(t, ip).up(t) }
}

func playUse(t *testing.T, g group) func(*testing.T, *stage) {
	w := words(t, g.head, 2)
	return func(t *testing.T, s *stage) {
		if !s.upstream(t, w[0]).use(w[1]) {
			t.Fatalf("upstream %s has no state %s", w[0], w[1])
		}
	}
}

func playAsked(t *testing.T, g group) func(*testing.T, *stage) {
	w := words(t, g.head, 4)
	want := number(t, g.head, w[3])
	return func(t *testing.T, s *stage) {
		if n, _ := s.upstream(t, w[0]).last(w[1], w[2]); n != want {
			t.Errorf("%v: received %d queries", g.head, n)
		}
	}
}

func playSeen(t *testing.T, g group) func(*testing.T, *stage) {
	if len(g.head.words) < 5 {
		t.Fatalf("%v: want IP NAME TYPE and traits", g.head)
	}
	w := g.head.words[1:]
	for _, want := range w[3:] {
		if _, ok := traits[strings.Split(want, "=")[0]]; !ok {
			t.Fatalf("%v: %q?", g.head, want)
		}
	}
	return func(t *testing.T, s *stage) {
		n, q := s.upstream(t, w[0]).last(w[1], w[2])
		if n == 0 {
			t.Fatalf("%v: received no query", g.head)
		}
		for _, want := range w[3:] {
			key, value, _ := strings.Cut(want, "=")
			if !traits[key](q, value) {
				t.Errorf("%v: not %s:\n%v", g.head, want, q.msg)
			}
		}
	}
}

// traits are the properties that a step can check of an upstream's query.
var traits = map[string]func(q query, value string) bool{
	"udp":  func(q query, _ string) bool { return q.proto == "udp" },
	"tcp":  func(q query, _ string) bool { return q.proto == "tcp" },
	"do":   func(q query, _ string) bool { return wantsDNSSEC(q.msg) },
	"nodo": func(q query, _ string) bool { return !wantsDNSSEC(q.msg) },
	"cd":   func(q query, _ string) bool { return q.msg.CheckingDisabled },
	"nocd": func(q query, _ string) bool { return !q.msg.CheckingDisabled },
	"ad":   func(q query, _ string) bool { return q.msg.AuthenticatedData },
	"noad": func(q query, _ string) bool { return !q.msg.AuthenticatedData },
	"rd":   func(q query, _ string) bool { return q.msg.RecursionDesired },
	"edns": func(q query, v string) bool {
		opt := q.msg.IsEdns0()
		return opt != nil && dns.Class(opt.UDPSize()) == dns.Class(atoi(v))
	},
	"options": func(q query, v string) bool {
		var codes []string
		if v != "none" {
			codes = strings.Split(v, ",")
		}
		return slices.Equal(optionCodes(q.msg), codes)
	},
}

func wantsDNSSEC(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && opt.Do()
}
