package server

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
)

// templateServer serves templates before a source that answers every question
// with one TXT record.
func templateServer(t *testing.T, configs ...action.TemplateConfig) *testServer {
	t.Helper()
	for i := range configs {
		if configs[i].Zones == nil {
			configs[i].Zones = []string{"."}
		}
		if configs[i].Class == 0 {
			configs[i].Class = dns.ClassINET
		}
	}
	tmpl, err := action.NewTemplates(configs)
	if err != nil {
		t.Fatal(err)
	}
	next := sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		return reply(t, m, m.Question[0].Name+" 60 IN TXT next"), nil
	})
	z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "template", Client: tmpl}, {Name: "forward", Source: next}}}
	return newTestServer(t, Config{}, z)
}

func TestTemplate(t *testing.T) {
	re := func(list ...string) (out []*regexp.Regexp) {
		for _, s := range list {
			out = append(out, regexp.MustCompile(s))
		}
		return out
	}
	next := func(name string) string { return "NOERROR; " + name + ` TXT "next"` }
	for _, tt := range []struct {
		about   string
		configs []action.TemplateConfig
		name    string
		qtype   uint16
		want    string
	}{
		{"all data", []action.TemplateConfig{{Type: dns.TypeTXT, Zones: []string{"org.", "example.org."}, Patterns: re(`^nothing`, `^(?P<first>[a-z]+)-([0-9]+)\.`),
			Answer: []string{`{{ .Name }} 60 IN TXT "{{ .Zone }} {{ .Regex | len }} {{ index .Match 2 }} {{ .Group.first }} {{ index .Group "2" }} {{ .Class }} {{ .Type }} {{ .Question.Qtype }} {{ .Remote }} {{ .Meta "x" }} {{ .Message.RecursionDesired }} {{ parseInt "ff" 16 8 }}"`}}},
			"Ab-12.Example.org.", dns.TypeTXT, `NOERROR; Ab-12.Example.org. TXT "example.org. 29 12 ab 12 IN TXT 16 127.0.0.1 true 255"`},
		{"empty", []action.TemplateConfig{{Class: dns.ClassANY, Type: dns.TypeAAAA}}, "a.example.org.", dns.TypeAAAA, "NOERROR"},
		{"another type", []action.TemplateConfig{{Type: dns.TypeAAAA}}, "a.example.org.", dns.TypeTXT, next("a.example.org.")},
		{"another class", []action.TemplateConfig{{Class: dns.ClassCHAOS, Type: dns.TypeANY}}, "a.example.org.", dns.TypeTXT, next("a.example.org.")},
		{"another zone", []action.TemplateConfig{{Type: dns.TypeANY, Zones: []string{"example.net."}}}, "a.example.org.", dns.TypeTXT, next("a.example.org.")},
		{"no pattern matches", []action.TemplateConfig{{Type: dns.TypeANY, Patterns: re(`^x`)}}, "a.example.org.", dns.TypeTXT, "SERVFAIL"},
		{"falls through", []action.TemplateConfig{{Type: dns.TypeANY, Patterns: re(`^x`), Fallthrough: []string{"."}}}, "a.example.org.", dns.TypeTXT, next("a.example.org.")},
		{"falls through elsewhere", []action.TemplateConfig{{Type: dns.TypeANY, Patterns: re(`^x`), Fallthrough: []string{"example.net."}}}, "a.example.org.", dns.TypeTXT, "SERVFAIL"},
		{"the second one", []action.TemplateConfig{{Type: dns.TypeANY, Patterns: re(`^x`), Fallthrough: []string{"."}}, {Type: dns.TypeANY, Rcode: dns.RcodeNameError}},
			"a.example.org.", dns.TypeA, "NXDOMAIN"},
		{"rcode", []action.TemplateConfig{{Type: dns.TypeANY, Rcode: dns.RcodeRefused}}, "a.example.org.", dns.TypeA, "REFUSED"},
		{"SERVFAIL", []action.TemplateConfig{{Type: dns.TypeANY, Rcode: dns.RcodeServerFailure, Answer: []string{"a. 1 IN A 192.0.2.1"}}}, "a.example.org.", dns.TypeA, "SERVFAIL"},
		{"invalid record", []action.TemplateConfig{{Type: dns.TypeANY, Answer: []string{"{{ .Name }} IN A here"}}}, "a.example.org.", dns.TypeA, "SERVFAIL"},
		{"empty record", []action.TemplateConfig{{Type: dns.TypeANY, Answer: []string{"{{/* none */}}"}}}, "a.example.org.", dns.TypeA, "SERVFAIL"},
		{"a template that fails", []action.TemplateConfig{{Type: dns.TypeANY, Answer: []string{"{{ index .Match 7 }}"}}}, "a.example.org.", dns.TypeA, "SERVFAIL"},
		{"CNAME followed", []action.TemplateConfig{
			{Type: dns.TypeA, Zones: []string{"a.example.org."}, Answer: []string{"{{ .Name }} 60 IN CNAME b.example.org."}},
			{Type: dns.TypeA, Zones: []string{"b.example.org."}, Answer: []string{"{{ .Name }} 60 IN A 192.0.2.7"}},
		}, "a.example.org.", dns.TypeA, "NOERROR; a.example.org. CNAME b.example.org.; b.example.org. A 192.0.2.7"},
		{"CNAME not followed for TXT", []action.TemplateConfig{{Type: dns.TypeANY, Answer: []string{"{{ .Name }} 60 IN CNAME b.example.org."}}},
			"a.example.org.", dns.TypeTXT, "NOERROR; a.example.org. CNAME b.example.org."},
	} {
		t.Run(tt.about, func(t *testing.T) {
			ts := templateServer(t, tt.configs...)
			for _, round := range []string{"miss", "hit"} {
				if got := summary(ts.ask(t, "udp", query(tt.name, tt.qtype))); got != tt.want {
					t.Errorf("%s: got %q, want %q", round, got, tt.want)
				}
			}
		})
	}
}

func TestTemplateSections(t *testing.T) {
	ts := templateServer(t, action.TemplateConfig{
		Type: dns.TypeNS, Answer: []string{"{{ .Name }} 60 IN NS a.", "{{ .Name }} 60 IN NS b."},
		Authority: []string{"org. 60 IN NS c."}, Additional: []string{"a. 60 IN A 192.0.2.1", "b. 60 IN A 192.0.2.2"},
	})
	r := ts.ask(t, "udp", query("example.org.", dns.TypeNS))
	if len(r.Answer) != 2 || len(r.Ns) != 1 || len(r.Extra) != 2 || !r.Authoritative {
		t.Errorf("reply %v", r)
	}
}

// TestTemplateEDE checks that every reply has the Extended DNS Error, not only the
// first.
func TestTemplateEDE(t *testing.T) {
	ts := templateServer(t, action.TemplateConfig{Type: dns.TypeA, Rcode: dns.RcodeNameError, EDE: &action.ReplyEDE{Code: 17, Text: "no"}})
	for range 3 {
		r := ts.ask(t, "udp", query("a.example.org.", dns.TypeA, withEDNS(1232, false)))
		if r.Rcode != dns.RcodeNameError || edeOf(r) != 17 {
			t.Errorf("reply %v", r)
		}
	}
	if r := ts.ask(t, "udp", query("a.example.org.", dns.TypeA)); r.IsEdns0() != nil {
		t.Error("an OPT record that the client did not request")
	}
}

// TestTemplateRemote sends queries from two addresses: each gets its own answer.
func TestTemplateRemote(t *testing.T) {
	ts := templateServer(t, action.TemplateConfig{Type: dns.TypeA, Answer: []string{"{{ .Name }} 60 IN A {{ .Remote }}"}})
	for range 2 {
		for i := 1; i <= 2; i++ {
			ip := fmt.Sprintf("127.0.0.%d", i)
			if r := ts.askFrom(t, ip, query("a.example.org.", dns.TypeA)); summary(r) != "NOERROR; a.example.org. A "+ip {
				t.Errorf("%s: %s", ip, summary(r))
			}
		}
	}
}

// TestTemplateCycle: following a cycle of CNAMEs ends.
func TestTemplateCycle(t *testing.T) {
	ts := templateServer(t,
		action.TemplateConfig{Type: dns.TypeA, Zones: []string{"a.example.org."}, Answer: []string{"{{ .Name }} 60 IN CNAME b.example.org."}},
		action.TemplateConfig{Type: dns.TypeA, Zones: []string{"b.example.org."}, Answer: []string{"{{ .Name }} 60 IN CNAME a.example.org."}},
	)
	if r := ts.ask(t, "udp", query("a.example.org.", dns.TypeA)); r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 || len(r.Answer) > maxDepth+1 {
		t.Errorf("reply %v", r)
	}
}
