package server

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
)

func exactly(s string) action.NameMatch { return action.NameMatch{Kind: action.MatchExact, Text: s} }
func ending(s string) action.NameMatch  { return action.NameMatch{Kind: action.MatchSuffix, Text: s} }
func matching(s string) action.NameMatch {
	return action.NameMatch{Kind: action.MatchRegex, Pattern: regexp.MustCompile(s)}
}

func steps(rules ...action.RewriteRule) *action.Rewrite {
	w := new(action.Rewrite)
	for _, r := range rules {
		w.Steps = append(w.Steps, action.RewriteStep{Rule: r})
	}
	return w
}

// rewriteRecords are the records of the source in TestRewrite.
func rewriteRecords() []string {
	return []string{
		"new.example.org. 300 IN A 192.0.2.1",
		"www.new.example.org. 300 IN CNAME new.example.org.",
		"svc.new.example.org. 300 IN SRV 1 2 80 target.new.example.org.",
		"new.example.org. 300 IN TXT t",
		"abc.rx.example.org. 300 IN CNAME abc.values.example.org.",
	}
}

func TestRewrite(t *testing.T) {
	name := func(m action.NameMatch, to string, auto bool, answers ...action.RewriteAnswer) action.RewriteRule {
		return action.RewriteName{Match: m, To: to, Auto: auto, Answers: answers}
	}
	answer := func(value bool, from, to string) action.RewriteAnswer {
		return action.RewriteAnswer{Value: value, Pattern: regexp.MustCompile(from), To: to}
	}
	for _, tt := range []struct {
		about string
		w     *action.Rewrite
		name  string
		qtype uint16
		want  string
	}{
		{"exact", steps(name(exactly("old.example.org."), "new.example.org.", true)), "OLD.example.org.", dns.TypeA,
			"NOERROR; old.example.org. A 192.0.2.1"},
		{"no rule matches", steps(name(exactly("old.example.org."), "new.example.org.", true)), "new.example.org.", dns.TypeA,
			"NOERROR; new.example.org. A 192.0.2.1"},
		{"prefix", steps(name(action.NameMatch{Kind: action.MatchPrefix, Text: "old."}, "new.", true)), "old.example.org.", dns.TypeA,
			"NOERROR; old.example.org. A 192.0.2.1"},
		{"prefix without auto", steps(name(action.NameMatch{Kind: action.MatchPrefix, Text: "old."}, "new.", false)), "old.example.org.", dns.TypeA,
			"NOERROR; new.example.org. A 192.0.2.1"},
		{"suffix", steps(name(ending(".old.example.org."), ".new.example.org.", true)), "www.old.example.org.", dns.TypeA,
			"NOERROR; www.old.example.org. CNAME new.example.org."},
		{"suffix in data", steps(name(ending(".old.example.org."), ".new.example.org.", true)), "svc.old.example.org.", dns.TypeSRV,
			"NOERROR; svc.old.example.org. SRV 1 2 80 target.old.example.org."},
		{"substring", steps(name(action.NameMatch{Kind: action.MatchSubstring, Text: "old."}, "new.", true)), "www.old.example.org.", dns.TypeA,
			"NOERROR; www.old.example.org. CNAME new.example.org."},
		{"regex", steps(name(matching(`^(.*)\.re\.example\.org\.$`), "{1}.rx.example.org.", false,
			answer(false, `(.*)\.rx\.example\.org\.`, "{1}.re.example.org."), answer(true, `(.*)\.values\.(.*)`, "{1}.v.{2}"))),
			"abc.re.example.org.", dns.TypeA, "NOERROR; abc.re.example.org. CNAME abc.v.example.org."},
		{"a name that does not exist", steps(name(exactly("old.example.org."), "none.example.org.", true)), "old.example.org.", dns.TypeA,
			"NXDOMAIN"},
		{"not a domain name", steps(name(matching(`^(.*)\.example\.org\.$`), "{1}..example.org.", false)), "a.example.org.", dns.TypeA,
			"SERVFAIL"},
		{"a name that is too long", steps(name(matching(`^(.*)\.example\.org\.$`), strings.Repeat("{1}.", 4)+"example.org.", false)),
			strings.Repeat("a", 63) + ".example.org.", dns.TypeA, "SERVFAIL"},
		{"type", steps(action.RewriteType{From: dns.TypeMX, To: dns.TypeTXT}), "new.example.org.", dns.TypeMX, `NOERROR; new.example.org. TXT "t"`},
		{"rcode", steps(action.RewriteRcode{Match: matching(`.*`), From: dns.RcodeNameError, To: dns.RcodeSuccess}), "none.example.org.", dns.TypeA, "NOERROR"},
		{"rcode of another", steps(action.RewriteRcode{Match: matching(`.*`), From: dns.RcodeServerFailure, To: dns.RcodeSuccess}), "none.example.org.", dns.TypeA, "NXDOMAIN"},
		{"rcode of a failure", steps(action.RewriteRcode{Match: matching(`.*`), From: dns.RcodeServerFailure, To: dns.RcodeNameError}), "fail.example.org.", dns.TypeAAAA, "NXDOMAIN"},
		{"cname", steps(action.RewriteCNAME{Match: exactly("new.example.org."), To: "svc.new.example.org."}), "www.new.example.org.", dns.TypeSRV,
			"NOERROR; www.new.example.org. CNAME svc.new.example.org.; svc.new.example.org. SRV 1 2 80 target.new.example.org."},
		{"cname to a zone that is not served", steps(action.RewriteCNAME{Match: exactly("new.example.org."), To: "www.example.net."}), "www.new.example.org.", dns.TypeA,
			"NOERROR; www.new.example.org. CNAME new.example.org."},
		{"cname to an invalid name", steps(action.RewriteCNAME{Match: ending(".example.org."), To: "..x"}), "www.new.example.org.", dns.TypeA,
			"NOERROR; www.new.example.org. CNAME new.example.org."},
		{"the first that applies stops", steps(
			name(exactly("old.example.org."), "new.example.org.", true), name(exactly("new.example.org."), "none.example.org.", true),
		), "old.example.org.", dns.TypeA, "NOERROR; old.example.org. A 192.0.2.1"},
		{"continue", &action.Rewrite{Steps: []action.RewriteStep{
			{Rule: name(exactly("a.example.org."), "b.example.org.", true), Continue: true},
			{Rule: name(exactly("b.example.org."), "new.example.org.", true), Continue: true},
			{Rule: action.RewriteType{From: dns.TypeMX, To: dns.TypeTXT}},
		}}, "a.example.org.", dns.TypeMX, `NOERROR; a.example.org. TXT "t"`},
	} {
		t.Run(tt.about, func(t *testing.T) {
			ts, _ := actionServer(t, &Actions{Rewrite: tt.w}, rewriteRecords()...)
			for _, round := range []string{"miss", "hit"} {
				r := ts.ask(t, "udp", query(tt.name, tt.qtype))
				if got := summary(r); got != tt.want {
					t.Errorf("%s: got %q, want %q", round, got, tt.want)
				}
				if q := r.Question[0]; q.Name != tt.name || q.Qtype != tt.qtype {
					t.Errorf("%s: question %v", round, q)
				}
			}
		})
	}
}

// TestRewriteShares checks that a name and the names that are rewritten to it cause
// one upstream query, because rewriting comes before the cache.
func TestRewriteShares(t *testing.T) {
	w := steps(action.RewriteName{Match: ending(".old.example.org."), To: ".example.org.", Auto: true})
	ts, src := actionServer(t, &Actions{Rewrite: w}, rewriteRecords()...)
	for _, name := range []string{"new.old.example.org.", "new.example.org.", "NEW.old.example.org."} {
		if r := ts.ask(t, "udp", query(name, dns.TypeA)); len(r.Answer) != 1 || !strings.EqualFold(r.Answer[0].Header().Name, name) {
			t.Errorf("%s: %v", name, r.Answer)
		}
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("%d questions reached the source, want 1", n)
	}
}

func TestRewriteTTL(t *testing.T) {
	for _, tt := range []struct{ least, most, want uint32 }{{60, 60, 60}, {0, 100, 100}, {1000, 2000, 1000}, {200, 400, 300}} {
		w := steps(action.RewriteTTL{Match: ending("example.org."), Min: tt.least, Max: tt.most})
		ts, _ := actionServer(t, &Actions{Rewrite: w}, rewriteRecords()...)
		r := ts.ask(t, "udp", query("new.example.org.", dns.TypeA, withEDNS(1232, true)))
		if got := r.Answer[0].Header().Ttl; got > tt.want || got+5 < tt.want {
			t.Errorf("%d-%d: TTL %d, want %d", tt.least, tt.most, got, tt.want)
		}
		if o := r.IsEdns0(); o == nil || !o.Do() || o.Version() != 0 {
			t.Errorf("OPT %v", o)
		}
	}
}

// TestRewriteBits: the reply has the EDNS and DNSSEC bits that the client requested.
// A changed reply has no AD.
func TestRewriteBits(t *testing.T) {
	src := sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		r := reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1")
		r.AuthenticatedData, r.Authoritative = true, true
		if opt := m.IsEdns0(); (opt != nil && opt.Do()) != m.CheckingDisabled {
			t.Errorf("DO and CD differ from the client's: %v", m)
		}
		return r, nil
	})
	z := &Zone{Name: "example.org.", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: &Actions{
		Rewrite: steps(action.RewriteName{Match: exactly("old.example.org."), To: "new.example.org.", Auto: true}),
	}}
	ts := newTestServer(t, Config{}, z)
	secure := func(m *dns.Msg) { m.SetEdns0(1232, true); m.CheckingDisabled = true }
	for _, tt := range []struct {
		name   string
		opt    func(*dns.Msg)
		ad, do bool
	}{
		{"old.example.org.", func(*dns.Msg) {}, false, false},
		{"old.example.org.", secure, false, true},
		{"other.example.org.", secure, true, true},
	} {
		for range 2 {
			r := ts.ask(t, "udp", query(tt.name, dns.TypeA, tt.opt))
			do := r.IsEdns0() != nil && r.IsEdns0().Do()
			if r.AuthenticatedData != tt.ad || do != tt.do || r.CheckingDisabled != tt.do || len(r.Answer) != 1 {
				t.Errorf("%s: AD %t, DO %t, CD %t, %v", tt.name, r.AuthenticatedData, do, r.CheckingDisabled, r.Answer)
			}
		}
	}
}

func TestRewriteClass(t *testing.T) {
	w := steps(action.RewriteClass{From: dns.ClassCHAOS, To: dns.ClassINET})
	silent := zone(".", nil, func(ctx context.Context, _ *dns.Msg) (*dns.Msg, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	silent.Actions = &Actions{Rewrite: w}
	z := zone("example.org.", nil, (&records{t: t, list: rewriteRecords()}).Exchange)
	z.Actions = &Actions{Rewrite: w}
	ts := newTestServer(t, Config{}, silent, z)
	m := query("new.example.org.", dns.TypeA)
	m.Question[0].Qclass = dns.ClassCHAOS
	r := ts.ask(t, "udp", m)
	if r.Question[0].Qclass != dns.ClassCHAOS || summary(r) != "NOERROR; new.example.org. A 192.0.2.1" {
		t.Errorf("reply %v", r)
	}
	transfer := query("example.org.", dns.TypeAXFR)
	transfer.Question[0].Qclass = dns.ClassCHAOS
	if r := ts.ask(t, "tcp", transfer); r.Rcode != dns.RcodeRefused {
		t.Errorf("a transfer in class CH: %v", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := Ask(ctx, ts.addr); err != nil {
		t.Errorf("Ask: %v", err)
	}
	m.Question[0].Qclass = dns.ClassHESIOD
	if r := ts.ask(t, "udp", m); r.Rcode != dns.RcodeRefused {
		t.Errorf("class HS: %v", r)
	}
}

// options is a source that answers with the options of the query.
type options struct {
	t     testing.TB
	asked atomic.Int64
}

func (o *options) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	o.asked.Add(1)
	text := "none"
	if opt := m.IsEdns0(); opt != nil {
		var list []string
		for _, e := range opt.Option {
			local := e.(*dns.EDNS0_LOCAL)
			list = append(list, fmt.Sprintf("%d=%x", local.Code, local.Data))
		}
		text = strings.Join(list, ",")
	}
	return reply(o.t, m, m.Question[0].Name+" 60 IN TXT "+text), nil
}

func TestRewriteEDNS0(t *testing.T) {
	sent := func(data string) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte(data)}}
		}
	}
	none := func(*dns.Msg) {}
	rule := func(what string) action.RewriteEDNS0 {
		return action.RewriteEDNS0{Action: what, Code: 65001, Data: []byte("x")}
	}
	for _, tt := range []struct {
		about string
		w     *action.Rewrite
		opt   func(*dns.Msg)
		want  string
		asked int64 // questions to upstream, of two
	}{
		{"set", steps(rule(action.EDNS0Set)), none, "65001=78", 1},
		{"set over the client's", steps(rule(action.EDNS0Set)), sent("c"), "65001=78", 2},
		{"append", steps(rule(action.EDNS0Append)), none, "65001=78", 1},
		{"append to the client's", steps(rule(action.EDNS0Append)), sent("c"), "65001=63", 2},
		{"replace", steps(rule(action.EDNS0Replace)), none, "none", 1},
		{"replace the client's", steps(rule(action.EDNS0Replace)), sent("c"), "65001=78", 2},
		{"unset", steps(rule(action.EDNS0Unset)), sent("c"), "none", 1},
		{"no rule", nil, sent("c"), "none", 1},
		{"subnet", steps(action.RewriteEDNS0{Action: action.EDNS0Set, Code: dns.EDNS0SUBNET, Subnet: &action.EDNS0Subnet{V4: 20, V6: 56}}), none,
			"8=000114007f0000", 2},
		{"qname", steps(action.RewriteEDNS0{Action: action.EDNS0Set, Code: 65001, Variable: "qname"}), none, "65001=" + fmt.Sprintf("%x", "a.example.org."), 2},
		{"client_ip", steps(action.RewriteEDNS0{Action: action.EDNS0Set, Code: 65001, Variable: "client_ip"}), none, "65001=7f000001", 2},
		{"server_port", steps(action.RewriteEDNS0{Action: action.EDNS0Set, Code: 65001, Variable: "server_port"}), none, "65001=14b4", 2},
		{"protocol", steps(action.RewriteEDNS0{Action: action.EDNS0Set, Code: 65001, Variable: "protocol"}), none, "65001=756470", 2},
	} {
		t.Run(tt.about, func(t *testing.T) {
			src := &options{t: t}
			z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: &Actions{Rewrite: tt.w}}
			ts := newTestServer(t, Config{}, z)
			for range 2 {
				r := ts.ask(t, "udp", query("A.example.org.", dns.TypeTXT, tt.opt))
				if got := r.Answer[0].(*dns.TXT).Txt[0]; got != tt.want {
					t.Errorf("upstream got %q, want %q", got, tt.want)
				}
				if opt := r.IsEdns0(); opt != nil && len(opt.Option) > 0 {
					t.Errorf("the client got options %v", opt.Option)
				}
			}
			if n := src.asked.Load(); n != tt.asked {
				t.Errorf("%d questions reached upstream, want %d", n, tt.asked)
			}
		})
	}
}
