package upstream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func withEDE(code uint16, text string) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
	}
}

func TestBadRcodeAsksNextServer(t *testing.T) {
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotAuth, dns.RcodeNotImplemented} {
		t.Run(rcodeLabel(rcode), func(t *testing.T) {
			bad, good := newFake(t, answering(withRcode(rcode))), newFake(t, nil)
			p, reg := newTestPool(t, nil, bad.endpoint(), good.endpoint())
			mustAnswer(t, p, "example.org.")
			wantSeries(t, reg, 1, "coredns_forward_responses_total", "to", bad.addr.String(), "rcode", rcodeLabel(rcode))
			wantSeries(t, reg, 1, "coredns_forward_responses_total", "to", good.addr.String(), "rcode", "NOERROR")
			if s := (*p.servers.Load())[0]; s.fails != 0 {
				t.Error("a reply counts as a failure of the server")
			}
		})
	}
}

func TestBadRcodeOfAllServers(t *testing.T) {
	a := newFake(t, answering(withRcode(dns.RcodeRefused)))
	b := newFake(t, answering(func(m *dns.Msg) {
		withEDE(dns.ExtendedErrorCodeDNSBogus, "signature expired")(m)
		withEDE(dns.ExtendedErrorCodeNetworkError, "")(m)
		m.Rcode = dns.RcodeServerFailure
	}))
	p, _ := newTestPool(t, nil, a.endpoint(), b.endpoint())
	m, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
	var e *Error
	if m != nil || !errors.As(err, &e) {
		t.Fatalf("%v, %v; want an *Error", m, err)
	}
	if e.EDE != dns.ExtendedErrorCodeDNSBogus || e.Text != "signature expired" || e.Rcode != dns.RcodeServerFailure {
		t.Errorf("error %+v", e)
	}
	if len(a.queries()) != 1 || len(b.queries()) != 1 {
		t.Errorf("%d and %d queries, want one each", len(a.queries()), len(b.queries()))
	}
	for _, part := range []string{"example.org.", a.addr.String() + ": REFUSED", b.addr.String() + ": SERVFAIL"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestFinalRcodes(t *testing.T) {
	for _, rcode := range []int{dns.RcodeNameError, dns.RcodeYXDomain} {
		first, second := newFake(t, answering(withRcode(rcode))), newFake(t, nil)
		p, _ := newTestPool(t, nil, first.endpoint(), second.endpoint())
		m, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
		if err != nil || m.Rcode != rcode || len(second.queries()) != 0 {
			t.Errorf("%s: %v, %v, %d queries to the second", rcodeLabel(rcode), m, err, len(second.queries()))
		}
	}
}

func TestLameReferral(t *testing.T) {
	lame := answering(func(m *dns.Msg) {
		m.RecursionAvailable = false
		rr, _ := dns.NewRR("org. 60 IN NS a.example.")
		m.Ns = append(m.Ns, rr)
	})
	t.Run("another server answers", func(t *testing.T) {
		p, _ := newTestPool(t, nil, newFake(t, lame).endpoint(), newFake(t, nil).endpoint())
		mustAnswer(t, p, "example.org.")
	})
	t.Run("no server answers", func(t *testing.T) {
		f := newFake(t, lame)
		p, _ := newTestPool(t, nil, f.endpoint(), newFake(t, answering(withRcode(dns.RcodeRefused))).endpoint())
		m, err := p.Exchange(t.Context(), asking("Example.org.", dns.TypeA))
		if err != nil || len(m.Ns) != 1 || m.Question[0].Name != "Example.org." {
			t.Errorf("%v, %v; want the referral", m, err)
		}
	})
}

func TestQueriesAreBounded(t *testing.T) {
	var all []*fake
	var endpoints []Endpoint
	for range 5 {
		f := newFake(t, answering(withRcode(dns.RcodeServerFailure)))
		all, endpoints = append(all, f), append(endpoints, f.endpoint())
	}
	p, _ := newTestPool(t, nil, endpoints...)
	if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
		t.Fatal("no error")
	}
	total := 0
	for _, f := range all {
		total += len(f.queries())
	}
	if total != maxTries {
		t.Errorf("%d queries, want %d", total, maxTries)
	}
}

func TestScope(t *testing.T) {
	f := newFake(t, nil)
	p, _ := newTestPool(t, func(c *PoolConfig) {
		c.From, c.Except = "example.org.", []string{"internal.example.org.", "example.org."}
	}, f.endpoint())
	for name, mine := range map[string]bool{
		"example.org.": true, "EXAMPLE.org.": true, // From itself wins over Except
		"www.example.org.": false, "internal.example.org.": false, "org.": false, ".": false, "notexample.org.": false,
	} {
		_, err := p.Exchange(t.Context(), asking(name, dns.TypeA))
		if errors.Is(err, ErrNotMine) == mine || mine && err != nil {
			t.Errorf("%s: %v, want mine %v", name, err, mine)
		}
	}
	p, _ = newTestPool(t, func(c *PoolConfig) { c.Except = []string{"internal.example.org."} }, f.endpoint())
	for name, mine := range map[string]bool{".": true, "www.example.org.": true, "a.Internal.example.org.": false} {
		if _, err := p.Exchange(t.Context(), asking(name, dns.TypeA)); errors.Is(err, ErrNotMine) == mine {
			t.Errorf("%s: %v, want mine %v", name, err, mine)
		}
	}
}

func TestMaxConcurrent(t *testing.T) {
	asked, release := make(chan bool), make(chan bool)
	f := newFake(t, func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			if q.msg.Question[0].Name == "slow.example." {
				asked <- true
				<-release
			}
			send(answer(q.msg))
		}
	})
	p, reg := newTestPool(t, func(c *PoolConfig) { c.MaxConcurrent = 1 }, f.endpoint())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.Exchange(context.Background(), asking("slow.example.", dns.TypeA)); err != nil {
			t.Error(err)
		}
	})
	<-asked
	_, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrOverloaded) {
		t.Errorf("error %v, want ErrOverloaded", err)
	}
	close(release)
	wg.Wait()
	mustAnswer(t, p, "example.org.")
	wantSeries(t, reg, 1, "coredns_forward_max_concurrent_rejects_total")
}

func TestBadQuestions(t *testing.T) {
	p, _ := newTestPool(t, nil, newFake(t, nil).endpoint())
	two := asking("example.org.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	for name, m := range map[string]*dns.Msg{
		"nil": nil, "no question": new(dns.Msg), "two": two,
		"overlong label": asking(strings.Repeat("a", 64)+".org.", dns.TypeA),
		"empty label":    asking("a..org.", dns.TypeA),
	} {
		var e *Error
		if _, err := p.Exchange(t.Context(), m); !errors.As(err, &e) {
			t.Errorf("%s: %v, want an *Error", name, err)
		}
	}
}

func TestNoEndpoints(t *testing.T) {
	p, _ := newTestPool(t, nil)
	var e *Error
	if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); !errors.As(err, &e) || e.EDE != edeNotReady {
		t.Errorf("error %v, want EDE %d", err, edeNotReady)
	}
	p.SetEndpoints([]Endpoint{newFake(t, nil).endpoint(), {}})
	mustAnswer(t, p, "example.org.")
}

func TestNewPoolErrors(t *testing.T) {
	ok := Endpoint{Addr: netip.MustParseAddrPort("192.0.2.1:53")}
	for name, tt := range map[string]struct {
		c    PoolConfig
		want string
	}{
		"policy":    {PoolConfig{Policy: "fastest"}, "fastest"},
		"address":   {PoolConfig{Endpoints: []Endpoint{ok, {}}}, "not an address"},
		"port":      {PoolConfig{Endpoints: []Endpoint{{Addr: netip.MustParseAddrPort("192.0.2.1:0")}}}, "192.0.2.1:0"},
		"from":      {PoolConfig{From: "a..b."}, "a..b."},
		"except":    {PoolConfig{Except: []string{"a..b."}}, "a..b."},
		"max_fails": {PoolConfig{MaxFails: -1}, "max_fails"},
		"expire":    {PoolConfig{Expire: -1}, "negative"},
	} {
		if _, err := NewPool(tt.c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v does not say %q", name, err, tt.want)
		}
	}
	if _, err := NewPool(PoolConfig{Endpoints: []Endpoint{ok}}); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	in := []*server{{to: "a"}, {to: "b"}, {to: "c"}}
	run := func(p Policy) (firsts string) {
		pool, err := NewPool(PoolConfig{Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		pool.servers.Store(&in)
		for range 60 {
			out, _ := pool.plan()
			if len(out) != 3 || out[0] == out[1] || out[1] == out[2] || out[0] == out[2] {
				t.Fatalf("%s loses servers", p)
			}
			firsts += out[0].to
		}
		return firsts
	}
	if got := run(PolicySequential); got != strings.Repeat("a", 60) {
		t.Errorf("sequential: %s", got)
	}
	if got := run(PolicyRoundRobin); got != strings.Repeat("abc", 20) {
		t.Errorf("round_robin: %s", got)
	}
	for _, p := range []Policy{PolicyRandom, ""} {
		got := run(p)
		for _, s := range []string{"a", "b", "c"} {
			if strings.Count(got, s) < 4 { // 20 expected
				t.Errorf("random: %s", got)
			}
		}
	}
	if in[0].to != "a" || in[1].to != "b" {
		t.Error("the list was reordered in place")
	}
}

func TestDeadServerIsSkippedAfterReply(t *testing.T) {
	dead, bad := newFake(t, nil), newFake(t, answering(withRcode(dns.RcodeServerFailure)))
	dead.close()
	p, reg := newTestPool(t, func(c *PoolConfig) { c.MaxFails = 1 }, dead.endpoint(), bad.endpoint())
	for range 3 {
		if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
			t.Fatal("no error")
		}
	}
	wantSeries(t, reg, 1, "coredns_forward_requests_total", "to", dead.addr.String())
	wantSeries(t, reg, 3, "coredns_forward_requests_total", "to", bad.addr.String())
}

func TestDeadServerIsAskedLast(t *testing.T) {
	first, second := newFake(t, nil), newFake(t, nil)
	first.close()
	p, _ := newTestPool(t, func(c *PoolConfig) { c.MaxFails = 1 }, first.endpoint(), second.endpoint())
	mustAnswer(t, p, "example.org.") // the first is down now; nothing probes it
	second.close()
	first.listen()
	mustAnswer(t, p, "example.org.")
}

func TestFailuresCounted(t *testing.T) {
	const limit = 2 * time.Second
	tests := []struct {
		name      string
		cancelled bool
		err       error
		took      time.Duration
		want      int
	}{
		{"silence", false, os.ErrDeadlineExceeded, limit, 1},
		{"cancelled", true, os.ErrDeadlineExceeded, limit, 0},
		{"short wait", false, os.ErrDeadlineExceeded, limit / 4, 0},
		{"refused at once", false, syscall.ECONNREFUSED, 0, 1},
	}
	for _, tt := range tests {
		p, _ := newTestPool(t, func(c *PoolConfig) { c.AttemptTimeout = limit },
			Endpoint{Addr: netip.MustParseAddrPort("192.0.2.1:53")})
		s := (*p.servers.Load())[0]
		a := attempt{pool: p, cancelled: tt.cancelled}
		a.setFailed(&query{s: s, started: time.Now().Add(-tt.took)}, tt.err)
		if s.fails != tt.want {
			t.Errorf("%s: %d failures, want %d", tt.name, s.fails, tt.want)
		}
	}
}

func TestFORMERRWithOPTKeepsEDNS(t *testing.T) {
	f := newFake(t, answering(func(m *dns.Msg) { m.SetEdns0(1232, false); m.Rcode = dns.RcodeFormatError }))
	p, _ := newTestPool(t, nil, f.endpoint())
	if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
		t.Error("no error")
	}
	if n := len(f.queries()); n != 1 {
		t.Errorf("%d queries, want 1", n)
	}
}

func TestIsLame(t *testing.T) {
	ns, _ := dns.NewRR("org. 60 IN NS a.example.")
	soa, _ := dns.NewRR("org. 60 IN SOA a.example. b.example. 1 2 3 4 5")
	a, _ := dns.NewRR("example.org. 60 IN A 192.0.2.1")
	referral := func(change func(*dns.Msg)) *dns.Msg {
		m := &dns.Msg{Ns: []dns.RR{ns}}
		change(m)
		return m
	}
	for name, tt := range map[string]struct {
		change func(*dns.Msg)
		want   bool
	}{
		"referral":      {func(*dns.Msg) {}, true},
		"SOA after NS":  {func(m *dns.Msg) { m.Ns = []dns.RR{ns, soa} }, false},
		"empty":         {func(m *dns.Msg) { m.Ns = nil }, false},
		"RA":            {func(m *dns.Msg) { m.RecursionAvailable = true }, false},
		"AA":            {func(m *dns.Msg) { m.Authoritative = true }, false},
		"TC":            {func(m *dns.Msg) { m.Truncated = true }, false},
		"with answer":   {func(m *dns.Msg) { m.Answer = []dns.RR{a} }, false},
		"NXDOMAIN":      {func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, false},
		"two referrals": {func(m *dns.Msg) { m.Ns = []dns.RR{ns, ns} }, true},
	} {
		if got := kindOf(referral(tt.change)) == replyLame; got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

type dialerFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (f dialerFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

// TestLocalErrorsDoNotCount: a lack of file descriptors says nothing about the
// server.
func TestLocalErrorsDoNotCount(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ECONNREFUSED} {
		p, err := NewPool(PoolConfig{
			Endpoints: []Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:53")}}, MaxFails: 1,
			Dialer: dialerFunc(func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", errno)}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		q := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
		if _, err := p.Exchange(t.Context(), q); err == nil {
			t.Fatal("no error")
		}
		s := (*p.servers.Load())[0]
		s.mu.Lock()
		if want := errno == syscall.ECONNREFUSED; s.dead.Load() != want {
			t.Errorf("%v: dead %t, want %t", errno, !want, want)
		}
		s.mu.Unlock()
	}
}

// TestOptionsArePassedOn: EDNS0_LOCAL options go out unchanged, over UDP, and over
// TCP beside the keepalive option.
func TestOptionsArePassedOn(t *testing.T) {
	for _, force := range []bool{false, true} {
		f := newFake(t, nil)
		p, _ := newTestPool(t, func(c *PoolConfig) { c.ForceTCP = force }, f.endpoint())
		m := asking("example.org.", dns.TypeA)
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("abc")}, &dns.EDNS0_LOCAL{Code: 65002},
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
		}
		if _, err := p.Exchange(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		got := map[uint16]string{}
		for _, o := range f.queries()[0].msg.IsEdns0().Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok {
				got[local.Code] = string(local.Data)
			} else if o.Option() != dns.EDNS0TCPKEEPALIVE {
				t.Errorf("option %v", o)
			}
		}
		if len(got) != 2 || got[65001] != "abc" {
			t.Errorf("force_tcp %t: options %v", force, got)
		}
	}
}
