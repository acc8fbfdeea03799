package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// Rewrite is a rewrite directive. Exactly one of the pointers is set.
type Rewrite struct {
	Line     int
	Continue bool // also apply the rules after this one
	Name     *RewriteName
	Type     *RewriteCode
	Class    *RewriteCode
	TTL      *RewriteTTL
	Rcode    *RewriteRcode
	EDNS0    *RewriteEDNS0
	CNAME    *RewriteCNAME
}

// NameMatch selects the names that a rule applies to. Names are compared as text, in
// lower case and with their final dot. Text ends with a dot unless Kind is suffix,
// so prefix and substring match the last label as a whole.
type NameMatch struct {
	Kind    string         // exact, prefix, suffix, substring or regex
	Text    string         // of all kinds except regex
	Pattern *regexp.Regexp // of regex
}

// RewriteName changes the name of a question.
type RewriteName struct {
	Match   NameMatch
	To      string // {0}, {1}… are the groups of a regex
	Auto    bool   // change the names in the reply back
	Answers []RewriteAnswer
}

// RewriteAnswer changes names in a reply: owner names or, with Value, names in data.
type RewriteAnswer struct {
	Value   bool
	Pattern *regexp.Regexp
	To      string // {0}, {1}… are the groups
}

// RewriteCNAME changes the target of a CNAME in the reply. Match is for targets;
// its Text has a final dot only if Kind is exact.
type RewriteCNAME struct {
	Match NameMatch
	To    string // {0}, {1}… are the groups of a regex
}

// RewriteCode changes a type or a class.
type RewriteCode struct{ From, To uint16 }

// RewriteTTL limits the TTLs of a reply, in seconds.
type RewriteTTL struct {
	Match    NameMatch
	Min, Max uint32
}

// RewriteRcode changes the rcode of a reply.
type RewriteRcode struct {
	Match    NameMatch
	From, To int
}

func matchKinds() []string { return []string{"exact", "prefix", "suffix", "substring", "regex"} }

func rewriteFields() []string {
	return []string{"name", "type", "class", "ttl", "rcode", "edns0", "cname"}
}

// parseRewrite reads rewrite [continue|stop] FIELD …. The rule is on the line. If at
// most one word is on the line, the rule is in the block, whose lines are joined.
func parseRewrite(b *Block, s statement) error {
	words := s.argTexts()
	if len(words) < 2 {
		for _, o := range s.block {
			words = append(append(words, o.text), o.argTexts()...)
		}
	} else if err := s.noBlock(); err != nil {
		return err
	}
	r := &Rewrite{Line: s.line}
	if len(words) > 0 && slices.Contains([]string{"continue", "stop"}, strings.ToLower(words[0])) {
		r.Continue = strings.ToLower(words[0]) == "continue"
		words = words[1:]
	}
	if len(words) == 0 {
		return s.errorf("the rule is missing, expected: rewrite [continue|stop] %s …", strings.Join(rewriteFields(), "|"))
	}
	if err := r.parseRule(strings.ToLower(words[0]), words[1:]); err != nil {
		return s.fail(err)
	}
	b.Rewrites = append(b.Rewrites, r)
	return nil
}

func (r *Rewrite) parseRule(field string, args []string) (err error) {
	switch field {
	case "name":
		r.Name, err = parseRewriteName(args)
	case "type":
		r.Type, err = parseRewriteCode("type", dns.StringToType, args)
	case "class":
		r.Class, err = parseRewriteCode("class", dns.StringToClass, args)
	case "ttl":
		r.TTL, err = parseRewriteTTL(args)
	case "rcode":
		r.Rcode, err = parseRewriteRcode(args)
	case "edns0":
		r.EDNS0, err = parseRewriteEDNS0(args)
	case "answer":
		err = reason("answer must follow a name rule, as in: name regex FROM TO answer name FROM TO")
	case "cname":
		r.CNAME, err = parseRewriteCNAME(args)
	default:
		err = reason("%q is not one of %s", field, strings.Join(rewriteFields(), ", "))
	}
	return err
}

// parseMatch reads [KIND] TEXT and returns the rest further words that follow.
func parseMatch(field string, args []string, rest int) (NameMatch, []string, error) {
	m := NameMatch{Kind: "exact"}
	switch len(args) - rest {
	case 1:
	case 2:
		m.Kind = strings.ToLower(args[0])
		args = args[1:]
	default:
		return m, nil, reason("%s: expected: %s [%s] NAME and %d more, got %d words", field, field, strings.Join(matchKinds(), "|"), rest, len(args))
	}
	if !slices.Contains(matchKinds(), m.Kind) {
		return m, nil, reason("%s: %q is not one of %s", field, m.Kind, strings.Join(matchKinds(), ", "))
	}
	if m.Kind != "regex" {
		m.Text = strings.ToLower(dns.Fqdn(args[0]))
		return m, args[1:], nil
	}
	var err error
	m.Pattern, err = parsePattern(args[0])
	return m, args[1:], err
}

// parseRewriteName reads [KIND] FROM TO [answer …]….
func parseRewriteName(args []string) (*RewriteName, error) {
	end := slices.Index(args, "answer")
	if end < 0 {
		end = len(args)
	}
	m, rest, err := parseMatch("name", args[:end], 1)
	if err != nil {
		return nil, err
	}
	w := &RewriteName{Match: m, To: strings.ToLower(dns.Fqdn(rest[0])), Auto: m.Kind == "exact"}
	if m.Kind == "regex" {
		if err := checkGroups(w.To, m.Pattern); err != nil {
			return nil, err
		}
	} else if m.Kind == "exact" {
		if w.To, err = parseName(rest[0]); err != nil {
			return nil, err
		}
	}
	return w, w.parseAnswers(args[end:])
}

// parseAnswers reads answer auto, answer name FROM TO and answer value FROM TO. The
// word answer is optional after the first.
func (w *RewriteName) parseAnswers(args []string) error {
	auto := false
	for first := true; len(args) > 0; first = false {
		if args[0] == "answer" {
			args = args[1:]
		} else if first {
			return reason("unexpected %q, expected answer", args[0])
		}
		switch {
		case len(args) == 0:
			return reason("answer: expected auto, name FROM TO or value FROM TO")
		case args[0] == "auto":
			w.Auto, auto, args = true, true, args[1:]
		case args[0] != "name" && args[0] != "value":
			return reason("answer: %q is not one of auto, name, value", args[0])
		case len(args) < 3:
			return reason("answer %s: expected FROM and TO", args[0])
		default:
			if err := w.parseAnswer(args[0] == "value", args[1], args[2]); err != nil {
				return err
			}
			args = args[3:]
		}
	}
	if auto && slices.ContainsFunc(w.Answers, func(a RewriteAnswer) bool { return !a.Value }) {
		return reason("answer auto and answer name cannot be combined")
	}
	return nil
}

func (w *RewriteName) parseAnswer(value bool, from, to string) error {
	p, err := parsePattern(from)
	if err != nil {
		return err
	}
	a := RewriteAnswer{Value: value, Pattern: p, To: strings.ToLower(dns.Fqdn(to))}
	w.Answers = append(w.Answers, a)
	return checkGroups(a.To, p)
}

// checkGroups refuses {N} in to if the pattern has no group N.
func checkGroups(to string, p *regexp.Regexp) error {
	for _, m := range regexp.MustCompile(`\{([0-9]+)\}`).FindAllStringSubmatch(to, -1) {
		if n, err := strconv.Atoi(m[1]); err != nil || n > p.NumSubexp() {
			return reason("%s: the pattern %q has %d groups", m[0], p, p.NumSubexp())
		}
	}
	return nil
}

// parseRewriteCNAME reads [KIND] FROM TO.
func parseRewriteCNAME(args []string) (*RewriteCNAME, error) {
	m, rest, err := parseMatch("cname", args, 1)
	if err != nil {
		return nil, err
	}
	w := &RewriteCNAME{Match: m, To: strings.ToLower(rest[0])}
	switch m.Kind {
	case "exact":
		w.To, err = parseName(rest[0])
	case "regex":
		err = checkGroups(w.To, m.Pattern)
	default:
		w.Match.Text = strings.ToLower(args[len(args)-2])
	}
	return w, err
}

func parseRewriteCode(what string, codes map[string]uint16, args []string) (*RewriteCode, error) {
	if len(args) != 2 {
		return nil, reason("%s: expected FROM and TO", what)
	}
	var c RewriteCode
	for i, to := range []*uint16{&c.From, &c.To} {
		code, ok := codes[strings.ToUpper(args[i])]
		if !ok {
			return nil, reason("%s: %q is not a %s", what, args[i], what)
		}
		*to = code
	}
	return &c, nil
}

// parseRewriteTTL reads [KIND] NAME and SECONDS, MIN-, -MAX or MIN-MAX.
func parseRewriteTTL(args []string) (*RewriteTTL, error) {
	m, rest, err := parseMatch("ttl", args, 1)
	if err != nil {
		return nil, err
	}
	w := &RewriteTTL{Match: m}
	low, high, isRange := strings.Cut(rest[0], "-")
	if !isRange {
		high = low
	}
	if isRange && low == "" {
		low = "0"
	}
	if isRange && high == "" {
		high = strconv.Itoa(maxTTL)
	}
	least, err1 := parseNumber("TTL", low, 0, maxTTL)
	most, err2 := parseNumber("TTL", high, 0, maxTTL)
	if err1 != nil || err2 != nil || least > most || rest[0] == "-" {
		return nil, reason("ttl: %q is not a TTL in seconds or a range such as 30-300", rest[0])
	}
	w.Min, w.Max = uint32(least), uint32(most)
	return w, nil
}

// maxTTL is the largest TTL, RFC 2181 section 8.
const maxTTL = 1<<31 - 1

func parseRewriteRcode(args []string) (*RewriteRcode, error) {
	m, rest, err := parseMatch("rcode", args, 2)
	if err != nil {
		return nil, err
	}
	w := &RewriteRcode{Match: m}
	for i, to := range []*int{&w.From, &w.To} {
		if *to, err = parseRcode(rest[i]); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// parseRcode reads the name or number of an rcode.
func parseRcode(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= 23 {
		return n, nil
	}
	if n, ok := dns.StringToRcode[strings.ToUpper(text)]; ok {
		return n, nil
	}
	return 0, reason("%q is not an rcode", text)
}
