package config

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"text/template"

	"github.com/miekg/dns"
)

// RecordTemplate is a template directive.
type RecordTemplate struct {
	Line        int
	Class, Type uint16   // ANY: all
	Zones       []string // fully qualified; empty: all zones of the block
	Match       []*regexp.Regexp
	Answer      []string // valid Go templates, each for a record
	Authority   []string
	Additional  []string
	Rcode       int
	EDE         *ExtendedError
	Fallthrough []string // fully qualified; nil: none; "." for all
}

// ExtendedError is an Extended DNS Error, RFC 8914.
type ExtendedError struct {
	Code uint16
	Text string
}

// parseTemplate reads template CLASS TYPE [ZONES…] and its options.
func parseTemplate(b *Block, s statement) error {
	if err := s.arity(2, -1, "CLASS TYPE [ZONE…]"); err != nil {
		return err
	}
	t := &RecordTemplate{Line: s.line}
	class, ok := dns.StringToClass[strings.ToUpper(s.args[0].text)]
	if !ok {
		return s.errorf("%q is not a class, such as IN or ANY", s.args[0].text)
	}
	if class != dns.ClassINET && class != dns.ClassANY {
		return s.errorf("class %s has no effect, because nodens refuses such queries: remove the directive", dns.ClassToString[class])
	}
	var err error
	if t.Type, err = parseType(s.args[1].text); err != nil {
		return s.fail(err)
	}
	if t.Zones, err = parseZoneList(s, 2); err != nil {
		return err
	}
	t.Class = class
	b.Templates = append(b.Templates, t)
	return s.eachOption(func(string) bool { return true }, t.parseOption)
}

func (t *RecordTemplate) parseOption(o statement) error {
	switch o.text {
	case "match":
		return t.parseMatch(o)
	case "answer":
		return parseRecords(&t.Answer, o)
	case "authority":
		return parseRecords(&t.Authority, o)
	case "additional":
		return parseRecords(&t.Additional, o)
	case "rcode":
		return t.parseRcode(o)
	case "ederror":
		return t.parseEDE(o)
	case "fallthrough":
		zones, err := fallthroughZones(o)
		t.Fallthrough = zones
		return err
	case "upstream": // ignored since CoreDNS 1.3
		return nil
	}
	return o.unknown()
}

func (t *RecordTemplate) parseMatch(o statement) error {
	if err := o.arity(1, -1, "REGEXP…"); err != nil {
		return err
	}
	for _, text := range o.argTexts() {
		p, err := parsePattern(text)
		if err != nil {
			return o.fail(err)
		}
		t.Match = append(t.Match, p)
	}
	return nil
}

// parseRecords reads templates. nodens checks the records that they make only when
// it answers a query.
func parseRecords(to *[]string, o statement) error {
	if err := o.arity(1, -1, "RECORD…"); err != nil {
		return err
	}
	for _, text := range o.argTexts() {
		if err := checkTemplate(text); err != nil {
			return o.errorf("%q is not a template: %v", text, err)
		}
		*to = append(*to, text)
	}
	return nil
}

func checkTemplate(text string) error {
	_, err := template.New("").Funcs(template.FuncMap{"parseInt": strconv.ParseUint}).Parse(text)
	if err == nil {
		return nil
	}
	// The message starts with the name of the template and a line number.
	_, fault, found := strings.Cut(err.Error(), ": ")
	for rest := fault; found; {
		if _, rest, found = strings.Cut(rest, ":1: "); found {
			fault = rest
		}
	}
	return errors.New(strings.TrimPrefix(fault, ":1: "))
}

func (t *RecordTemplate) parseRcode(o statement) error {
	if err := o.arity(1, 1, "RCODE"); err != nil {
		return err
	}
	rcode, ok := dns.StringToRcode[strings.ToUpper(o.args[0].text)]
	if !ok {
		return o.errorf("%q is not an rcode, such as NXDOMAIN", o.args[0].text)
	}
	t.Rcode = rcode
	return nil
}

func (t *RecordTemplate) parseEDE(o statement) error {
	if err := o.arity(1, 2, "CODE [TEXT]"); err != nil {
		return err
	}
	code, err := parseNumber("code", o.args[0].text, 0, 65535)
	if err != nil {
		return o.fail(err)
	}
	t.EDE = &ExtendedError{Code: uint16(code)}
	if len(o.args) == 2 {
		t.EDE.Text = o.args[1].text
	}
	return nil
}

// fallthroughZones returns the zones of fallthrough, "." by default.
func fallthroughZones(o statement) ([]string, error) {
	if len(o.args) == 0 {
		return []string{"."}, nil
	}
	return parseZoneList(o, 0)
}

// maxPattern limits regular expressions, in bytes, as in CoreDNS.
const maxPattern = 10000

// parsePattern reads a regular expression.
func parsePattern(text string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, reason("the regular expression has %d bytes, the maximum is %d", len(text), maxPattern)
	}
	p, err := regexp.Compile(text)
	if fault, ok := errors.AsType[*syntax.Error](err); ok {
		return nil, reason("regular expression %q: %s", text, fault.Code)
	}
	if err != nil {
		return nil, reason("%q is not a regular expression", text)
	}
	return p, nil
}

func (t *RecordTemplate) describe() []string {
	patterns := make([]string, len(t.Match))
	for i, p := range t.Match {
		patterns[i] = p.String()
	}
	ede := "none"
	if t.EDE != nil {
		ede = strconv.Itoa(int(t.EDE.Code)) + " " + strconv.Quote(t.EDE.Text)
	}
	return []string{
		dns.ClassToString[t.Class] + " " + dns.TypeToString[t.Type],
		"zones " + wordsOr(t.Zones, "of the block"),
		"match " + wordsOr(patterns, "all"),
		"answer " + wordsOr(t.Answer, "none"),
		"authority " + wordsOr(t.Authority, "none"),
		"additional " + wordsOr(t.Additional, "none"),
		"rcode " + dns.RcodeToString[t.Rcode],
		"ederror " + ede,
		"fallthrough " + wordsOr(t.Fallthrough, "none"),
	}
}

// Key is equal for two templates with the same settings.
func (t *RecordTemplate) Key() string { return fmt.Sprintf("template %q", t.describe()) }
