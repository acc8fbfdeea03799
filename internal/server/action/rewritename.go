package action

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// Kinds of NameMatch.
const (
	MatchExact     = "exact"
	MatchPrefix    = "prefix"
	MatchSuffix    = "suffix"
	MatchSubstring = "substring"
	MatchRegex     = "regex"
)

// NameMatch selects the names of a rule. Names are compared as text in lower
// case with their final dot.
type NameMatch struct {
	Kind    string
	Text    string         // of all kinds but regex
	Pattern *regexp.Regexp // of regex
}

// holds reports whether the rule is for name.
func (m NameMatch) holds(name string) bool {
	switch m.Kind {
	case MatchExact:
		return name == m.Text
	case MatchPrefix:
		return strings.HasPrefix(name, m.Text)
	case MatchSuffix:
		return strings.HasSuffix(name, m.Text)
	case MatchSubstring:
		return strings.Contains(name, m.Text)
	}
	return m.Pattern.MatchString(name)
}

// replace replaces the part of name that matches by to. The rule must hold for
// name.
func (m NameMatch) replace(name, to string) string {
	switch m.Kind {
	case MatchExact:
		return to
	case MatchPrefix:
		return to + strings.TrimPrefix(name, m.Text)
	case MatchSuffix:
		return strings.TrimSuffix(name, m.Text) + to
	case MatchSubstring:
		return strings.ReplaceAll(name, m.Text, to)
	}
	return expandGroups(m.Pattern, name, to)
}

// expandGroups replaces {0}, {1}… in to by the groups of the pattern in text.
// Without a match it returns text.
func expandGroups(pattern *regexp.Regexp, text, to string) string {
	groups := pattern.FindStringSubmatch(text)
	if groups == nil {
		return text
	}
	for i, g := range groups {
		to = strings.ReplaceAll(to, "{"+strconv.Itoa(i)+"}", g)
	}
	return to
}

// RewriteName changes the name of the question.
type RewriteName struct {
	Match   NameMatch
	To      string
	Auto    bool // change the names in the answer back
	Answers []RewriteAnswer
}

// RewriteAnswer changes the owner names of a reply, or with Value the names in
// its records.
type RewriteAnswer struct {
	Value   bool
	Pattern *regexp.Regexp
	To      string
}

func (w RewriteName) apply(r *Rewriting) bool {
	if !w.Match.holds(r.Name) {
		return false
	}
	was := r.Name
	r.Name = w.Match.replace(was, w.To)
	switch {
	case w.Auto && w.Match.Kind == MatchSuffix:
		r.undo = append(r.undo, renaming{suffix: true, from: w.To, to: w.Match.Text})
	case w.Auto:
		r.undo = append(r.undo, renaming{from: r.Name, to: was})
	}
	for _, a := range w.Answers {
		r.undo = append(r.undo, a)
	}
	return true
}

// renaming changes names at or below from, or with suffix all names that end in
// it, both owner names and names in record data.
type renaming struct {
	suffix   bool
	from, to string
}

func (n renaming) rename(name string) string {
	lower := strings.ToLower(name)
	if n.suffix && strings.HasSuffix(lower, n.from) || lower == n.from || strings.HasSuffix(lower, "."+n.from) {
		return name[:len(name)-len(n.from)] + n.to
	}
	return name
}

func (n renaming) record(rr dns.RR) {
	if rr.Header().Rrtype != dns.TypeOPT {
		rr.Header().Name = n.rename(rr.Header().Name)
	}
	if value := nameIn(rr); value != nil {
		*value = n.rename(*value)
	}
}

func (renaming) message(*dns.Msg) {}

func (a RewriteAnswer) record(rr dns.RR) {
	if !a.Value {
		rr.Header().Name = expandGroups(a.Pattern, rr.Header().Name, a.To)
		return
	}
	if value := nameIn(rr); value != nil {
		*value = expandGroups(a.Pattern, *value, a.To)
	}
}

func (RewriteAnswer) message(*dns.Msg) {}

// nameIn returns the first name in a record's data, nil if its type has none.
func nameIn(rr dns.RR) *string {
	switch r := rr.(type) {
	case *dns.CNAME:
		return &r.Target
	case *dns.DNAME:
		return &r.Target
	case *dns.MX:
		return &r.Mx
	case *dns.NAPTR:
		return &r.Replacement
	case *dns.NS:
		return &r.Ns
	case *dns.PTR:
		return &r.Ptr
	case *dns.SOA:
		return &r.Ns
	case *dns.SRV:
		return &r.Target
	}
	return nil
}
