package action

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/miekg/dns"
)

// TemplateConfig is one template directive. Names are fully qualified.
type TemplateConfig struct {
	Zones       []string
	Class, Type uint16           // ANY: all
	Patterns    []*regexp.Regexp // of the name; empty: all
	Rcode       int
	Answer      []string // templates of a record each
	Authority   []string
	Additional  []string
	EDE         *ReplyEDE
	Fallthrough []string // a name in these that no pattern matches goes to the next source; ".": all names
}

// Templates is a source that makes records from templates. The first template
// that the question fits answers.
type Templates struct {
	list      []*recordTemplate
	perClient bool
}

type recordTemplate struct {
	TemplateConfig
	sections  [3][]*template.Template // answer, authority, additional
	perClient bool                    // it uses .Remote
}

// templateData is the data of a template, under CoreDNS's names.
type templateData struct {
	Zone     string
	Name     string // lower case
	Regex    string
	Match    []string
	Group    map[string]string
	Class    string
	Type     string
	Message  *dns.Msg // the question as upstreams would get it
	Question *dns.Question
	Remote   string // the client's address
}

// Meta returns the empty string: nodens collects no metadata.
func (*templateData) Meta(string) string { return "" }

func newRecordTemplate(text string) (*template.Template, error) {
	return template.New("record").Funcs(template.FuncMap{"parseInt": strconv.ParseUint}).Parse(text)
}

// NewTemplates makes the source for a block's template directives.
func NewTemplates(configs []TemplateConfig) (*Templates, error) {
	t := new(Templates)
	for _, c := range configs {
		r := &recordTemplate{TemplateConfig: c}
		for i, texts := range [3][]string{c.Answer, c.Authority, c.Additional} {
			for _, text := range texts {
				parsed, err := newRecordTemplate(text)
				if err != nil {
					return nil, fmt.Errorf("template %q: %w", text, err)
				}
				r.sections[i] = append(r.sections[i], parsed)
				r.perClient = r.perClient || usesField(parsed.Root, "Remote")
			}
		}
		t.list = append(t.list, r)
		t.perClient = t.perClient || r.perClient
	}
	return t, nil
}

// usesField reports whether a template may use a field.
func usesField(root parse.Node, field string) bool {
	return strings.Contains(root.String(), "."+field)
}

// PerClient reports whether the answer may depend on the client.
func (t *Templates) PerClient() bool { return t.perClient }

// Answer answers with the first template that fits. If the zone, class and type
// of a template fit but none of its patterns matches, the search ends, unless
// the name falls through.
func (t *Templates) Answer(req *Request) (Reply, error) {
	name := strings.ToLower(req.Msg.Question[0].Name)
	for _, r := range t.list {
		zone := longestZone(r.Zones, name)
		if zone == "" || !r.fits(req.Msg.Question[0]) {
			continue
		}
		data, ok := r.match(name, zone, req)
		switch {
		case ok:
			return r.reply(req, data)
		case !slices.ContainsFunc(r.Fallthrough, func(z string) bool { return dns.IsSubDomain(z, name) }):
			return Reply{}, &Error{Text: "no template is for this name", Err: fmt.Errorf("template: no pattern matches %s", name)}
		}
	}
	return Reply{}, nil
}

// longestZone is the longest zone that name is at or below, "" if there is none.
func longestZone(zones []string, name string) string {
	best := ""
	for _, z := range zones {
		if dns.IsSubDomain(z, name) && len(z) > len(best) {
			best = z
		}
	}
	return best
}

func (r *recordTemplate) fits(q dns.Question) bool {
	return (r.Class == dns.ClassANY || q.Qclass == dns.ClassANY || r.Class == q.Qclass) &&
		(r.Type == dns.TypeANY || q.Qtype == dns.TypeANY || r.Type == q.Qtype)
}

// match tries the patterns in order.
func (r *recordTemplate) match(name, zone string, req *Request) (*templateData, bool) {
	data := &templateData{
		Zone: zone, Name: name, Match: []string{name}, Group: map[string]string{"0": name},
		Class: dns.ClassToString[req.Msg.Question[0].Qclass], Type: dns.TypeToString[req.Msg.Question[0].Qtype],
		Message: req.Msg.Copy(), Question: &req.Msg.Copy().Question[0],
		Remote: req.Client.Addr().Unmap().WithZone("").String(),
	}
	if req.Msg.Question[0].Qtype == dns.TypeANY {
		data.Type = dns.TypeToString[r.Type]
	}
	if len(r.Patterns) == 0 {
		data.Regex = ".*"
		return data, true
	}
	for _, p := range r.Patterns {
		groups := p.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		data.Regex, data.Match = p.String(), groups
		for i, g := range groups {
			data.Group[strconv.Itoa(i)] = g
			if n := p.SubexpNames()[i]; n != "" {
				data.Group[n] = g
			}
		}
		return data, true
	}
	return nil, false
}

// reply makes the records. If one of them is invalid, the whole reply is an
// error.
func (r *recordTemplate) reply(req *Request, data *templateData) (Reply, error) {
	m := new(dns.Msg).SetRcode(req.Msg, r.Rcode)
	if r.Rcode == dns.RcodeServerFailure {
		return Reply{Msg: m, Private: true, EDE: r.EDE}, nil
	}
	m.Authoritative = true
	for i, section := range []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for _, t := range r.sections[i] {
			rr, err := makeRecord(t, data)
			if err != nil {
				return Reply{}, &Error{Text: "the template makes no record", Err: fmt.Errorf("template: %s: %w", data.Name, err)}
			}
			*section = append(*section, rr)
			if cname, ok := rr.(*dns.CNAME); ok && i == 0 {
				m.Answer = append(m.Answer, target(req, cname.Target)...)
			}
		}
	}
	return Reply{Msg: m, Private: r.perClient || r.EDE != nil, EDE: r.EDE}, nil
}

// makeRecord executes a template.
func makeRecord(t *template.Template, data *templateData) (dns.RR, error) {
	var text strings.Builder
	if err := t.Execute(&text, data); err != nil {
		return nil, err
	}
	rr, err := dns.NewRR(text.String())
	if err == nil && rr == nil {
		err = fmt.Errorf("no record: %q", text.String())
	}
	return rr, err
}

// target returns the records of a CNAME's target, for address queries.
func target(req *Request, name string) []dns.RR {
	qtype := req.Msg.Question[0].Qtype
	if qtype != dns.TypeA && qtype != dns.TypeAAAA {
		return nil
	}
	if m := req.Lookup(name, qtype); m != nil {
		return m.Answer
	}
	return nil
}
