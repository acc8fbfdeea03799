package server

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/upstream"
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
	EDE         *TemplateEDE
	Fallthrough []string // names that no pattern holds for are for others; "." for all
}

// TemplateEDE is an Extended DNS Error of a template's replies (RFC 8914).
type TemplateEDE struct {
	Code uint16
	Text string
}

// Templates are a source that makes records of templates. The first one that
// the question fits answers.
type Templates struct {
	list    []*recordTemplate
	clients bool
}

type recordTemplate struct {
	TemplateConfig
	sections [3][]*template.Template // answer, authority, additional
	clients  bool                    // it looks at .Remote
}

// templateData is what a template sees, under CoreDNS's names.
type templateData struct {
	Zone     string
	Name     string // lower case
	Regex    string
	Match    []string
	Group    map[string]string
	Class    string
	Type     string
	Message  *dns.Msg // the question as upstreams would be asked it
	Question *dns.Question
	Remote   string // the client's address
}

// Meta is empty: no metadata is collected.
func (*templateData) Meta(string) string { return "" }

func newRecordTemplate(text string) (*template.Template, error) {
	return template.New("record").Funcs(template.FuncMap{"parseInt": strconv.ParseUint}).Parse(text)
}

// NewTemplates makes the source of a block's template directives.
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
				r.clients = r.clients || usesField(parsed.Root, "Remote")
			}
		}
		t.list = append(t.list, r)
		t.clients = t.clients || r.clients
	}
	return t, nil
}

// usesField reports whether a template looks at a field.
func usesField(root parse.Node, field string) bool {
	return strings.Contains(root.String(), "."+field)
}

// Exchange takes no question: who asks it is nobody's client.
func (*Templates) Exchange(context.Context, *dns.Msg) (*dns.Msg, error) {
	return nil, upstream.ErrNotMine
}

func (t *Templates) perClient() bool { return t.clients }

// exchangeFor answers by the first template that fits. A template whose zone,
// class and type fit but none of whose patterns does ends the search, unless
// the name falls through.
func (t *Templates) exchangeFor(ctx context.Context, s *Server, x *exchange) (sourced, error) {
	name := strings.ToLower(x.m.Question[0].Name)
	for _, r := range t.list {
		zone := longestZone(r.Zones, name)
		if zone == "" || !r.fits(x.m.Question[0]) {
			continue
		}
		data, ok := r.match(name, zone, x)
		switch {
		case ok:
			return r.reply(ctx, s, x, data)
		case !slices.ContainsFunc(r.Fallthrough, func(z string) bool { return dns.IsSubDomain(z, name) }):
			return sourced{}, &upstream.Error{EDE: edeOther, Text: "no template is for this name",
				Err: fmt.Errorf("template: no pattern holds for %s", name)}
		}
	}
	return sourced{}, upstream.ErrNotMine
}

// longestZone is the zone with the most labels that name is at or below; "" if
// there is none.
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
func (r *recordTemplate) match(name, zone string, x *exchange) (*templateData, bool) {
	data := &templateData{
		Zone: zone, Name: name, Match: []string{name}, Group: map[string]string{"0": name},
		Class: dns.ClassToString[x.m.Question[0].Qclass], Type: dns.TypeToString[x.m.Question[0].Qtype],
		Message: x.m.Copy(), Question: &x.m.Copy().Question[0],
		Remote: x.client.Addr().Unmap().WithZone("").String(),
	}
	if x.m.Question[0].Qtype == dns.TypeANY {
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

// reply makes the records. One that is none makes the whole an error.
func (r *recordTemplate) reply(ctx context.Context, s *Server, x *exchange, data *templateData) (sourced, error) {
	out := sourced{Msg: new(dns.Msg).SetRcode(x.m, r.Rcode), private: r.clients || r.EDE != nil, note: r.ede()}
	if r.Rcode == dns.RcodeServerFailure {
		out.private = true
		return out, nil
	}
	out.Authoritative = true
	for i, section := range []*[]dns.RR{&out.Answer, &out.Ns, &out.Extra} {
		for _, t := range r.sections[i] {
			rr, err := makeRecord(t, data)
			if err != nil {
				return sourced{}, &upstream.Error{EDE: edeOther, Text: "the template makes no record", Err: fmt.Errorf("template: %s: %w", data.Name, err)}
			}
			*section = append(*section, rr)
			if cname, ok := rr.(*dns.CNAME); ok && i == 0 {
				out.follow(ctx, s, x, cname.Target)
			}
		}
	}
	return out, nil
}

// ede is the Extended DNS Error of the replies.
func (r *recordTemplate) ede() ede {
	if r.EDE == nil {
		return ede{}
	}
	return ede{set: true, code: r.EDE.Code, text: cutText(r.EDE.Text)}
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

// follow adds what is known of a CNAME's target, for addresses.
func (r *sourced) follow(ctx context.Context, s *Server, x *exchange, target string) {
	qtype := x.m.Question[0].Qtype
	if qtype != dns.TypeA && qtype != dns.TypeAAAA {
		return
	}
	if m := s.lookUp(ctx, x, target, qtype); m != nil {
		r.Answer = append(r.Answer, m.Answer...)
	}
}
