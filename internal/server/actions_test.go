package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// records is a source that answers from a list of records and counts the
// questions.
type records struct {
	t     testing.TB
	list  []string
	asked atomic.Int64
}

func (r *records) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	r.asked.Add(1)
	q := m.Question[0]
	out := reply(r.t, m)
	exists := false
	for _, s := range r.list {
		rr, err := dns.NewRR(s)
		if err != nil {
			return nil, err
		}
		if rr.Header().Name != q.Name {
			continue
		}
		exists = true
		if rr.Header().Rrtype == q.Qtype || rr.Header().Rrtype == dns.TypeCNAME {
			out.Answer = append(out.Answer, rr)
		}
	}
	if strings.HasPrefix(q.Name, "fail") && q.Qtype == dns.TypeAAAA {
		return nil, &upstream.Error{EDE: 22, Err: errors.New("upstream is down")}
	}
	if len(out.Answer) == 0 {
		soa, _ := dns.NewRR("example.org. 40 IN SOA ns.example.org. h.example.org. 1 1 1 1 40")
		out.Ns = append(out.Ns, soa)
		if !exists {
			out.Rcode = dns.RcodeNameError
		}
	}
	return out, nil
}

// actionServer serves example.org with actions, cached.
func actionServer(t *testing.T, a *Actions, list ...string) (*testServer, *records) {
	src := &records{t: t, list: list}
	z := &Zone{Name: "example.org.", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}, Actions: a}
	return newTestServer(t, Config{}, z), src
}

// summary is the rcode and the answers of a reply.
func summary(r *dns.Msg) string {
	out := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range r.Answer {
		f := strings.Fields(rr.String())
		out = append(out, fmt.Sprintf("%s %s", f[0], strings.Join(f[3:], " ")))
	}
	return strings.Join(out, "; ")
}

func TestACL(t *testing.T) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	acl, err := action.NewACL([]action.ACLRule{
		{Zones: []string{"blocked.example.org."}, Policies: []action.ACLPolicy{
			{Verdict: action.ACLAllow, Types: []uint16{dns.TypeTXT}}, {Verdict: action.ACLBlock, Nets: loopback},
		}},
		{Zones: []string{"example.org."}, Policies: []action.ACLPolicy{
			{Verdict: action.ACLBlock, Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			{Verdict: action.ACLFilter, Types: []uint16{dns.TypeMX}},
			{Verdict: action.ACLDrop, Types: []uint16{dns.TypeSRV}, Nets: loopback},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ts, src := actionServer(t, &Actions{ACL: acl}, "a.example.org. 60 IN A 192.0.2.1", "blocked.example.org. 60 IN TXT x")
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
		ede   int // -1: none
	}{
		{"a.example.org.", dns.TypeA, "NOERROR; a.example.org. A 192.0.2.1", -1},
		{"a.example.org.", dns.TypeMX, "NOERROR", int(dns.ExtendedErrorCodeFiltered)},
		{"blocked.example.org.", dns.TypeA, "REFUSED", int(dns.ExtendedErrorCodeBlocked)},
		{"X.blocked.example.org.", dns.TypeA, "REFUSED", int(dns.ExtendedErrorCodeBlocked)},
		{"notblocked.example.org.", dns.TypeA, "NXDOMAIN", -1},
		{"blocked.example.org.", dns.TypeTXT, "NOERROR; blocked.example.org. TXT \"x\"", -1},
	} {
		for _, network := range []string{"udp", "tcp"} {
			r := ts.ask(t, network, query(tt.name, tt.qtype, withEDNS(1232, false)))
			if got := summary(r); got != tt.want || edeOf(r) != tt.ede {
				t.Errorf("%s %s: got %q, EDE %d, want %q, EDE %d", network, tt.name, got, edeOf(r), tt.want, tt.ede)
			}
		}
	}
	if n := src.asked.Load(); n != 3 {
		t.Errorf("%d questions reached the source, want 3: an answer is cached, and a refused query reaches no source", n)
	}
	for _, network := range []string{"udp", "tcp"} {
		testDropped(t, ts, network)
	}
}

// testDropped sends a query that gets no reply and one that gets a reply on the
// same socket.
func testDropped(t *testing.T, ts *testServer, network string) {
	c, err := dns.DialTimeout(network, ts.addr.String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	dropped, after := query("a.example.org.", dns.TypeSRV), query("a.example.org.", dns.TypeA)
	for _, m := range []*dns.Msg{dropped, after} {
		if err := c.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.ReadMsg(); err != nil || r.Id != after.Id {
		t.Fatalf("%s: reply %v, error %v", network, r, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if r, err := c.ReadMsg(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: a dropped query got %v, error %v", network, r, err)
	}
}

// edeOf is the code of the Extended DNS Error in r, or -1.
func edeOf(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

func TestDNS64(t *testing.T) {
	d := &action.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), AllowIPv4: true}
	ts, _ := actionServer(t, &Actions{DNS64: d},
		"v4.example.org. 300 IN A 192.0.2.1", "short.example.org. 9 IN A 192.0.2.2",
		"both.example.org. 60 IN A 192.0.2.3", "both.example.org. 60 IN AAAA 2001:db8::3",
		"mapped.example.org. 60 IN A 192.0.2.4", "mapped.example.org. 60 IN AAAA ::ffff:192.0.2.4",
		"text.example.org. 60 IN TXT x", "fail.example.org. 60 IN A 192.0.2.5",
		"alias.example.org. 60 IN CNAME v4.example.org.",
	)
	for _, tt := range []struct {
		name, want string
		qtype      uint16
	}{
		{"v4.example.org.", "NOERROR; v4.example.org. AAAA 64:ff9b::c000:201", dns.TypeAAAA},
		{"V4.example.org.", "NOERROR; v4.example.org. AAAA 64:ff9b::c000:201", dns.TypeAAAA},
		{"v4.example.org.", "NOERROR; v4.example.org. A 192.0.2.1", dns.TypeA},
		{"both.example.org.", "NOERROR; both.example.org. AAAA 2001:db8::3", dns.TypeAAAA},
		{"mapped.example.org.", "NOERROR; mapped.example.org. AAAA 64:ff9b::c000:204", dns.TypeAAAA},
		{"text.example.org.", "NOERROR", dns.TypeAAAA},
		{"none.example.org.", "NXDOMAIN", dns.TypeAAAA},
		{"fail.example.org.", "NOERROR; fail.example.org. AAAA 64:ff9b::c000:205", dns.TypeAAAA},
		{"alias.example.org.", "NOERROR; alias.example.org. CNAME v4.example.org.", dns.TypeAAAA},
	} {
		r := ts.ask(t, "udp", query(tt.name, tt.qtype))
		if got := strings.ToLower(summary(r)); got != strings.ToLower(tt.want) {
			t.Errorf("%s %s: got %q, want %q", tt.name, dns.Type(tt.qtype), got, tt.want)
		}
	}
	if r := ts.ask(t, "udp", query("v4.example.org.", dns.TypeAAAA)); r.Answer[0].Header().Ttl > 40 {
		t.Errorf("TTL %d, want at most that of the SOA, 40", r.Answer[0].Header().Ttl)
	}
	if r := ts.ask(t, "udp", query("short.example.org.", dns.TypeAAAA)); r.Answer[0].Header().Ttl > 9 {
		t.Errorf("TTL %d, want at most that of the A record, 9", r.Answer[0].Header().Ttl)
	}
	validating := query("v4.example.org.", dns.TypeAAAA, withEDNS(1232, true), func(m *dns.Msg) { m.CheckingDisabled = true })
	if r := ts.ask(t, "udp", validating); len(r.Answer) != 0 {
		t.Errorf("a client that validates got %v", r.Answer)
	}
}

func TestLoadBalance(t *testing.T) {
	var list []string
	for i := range 8 {
		list = append(list, fmt.Sprintf("many.example.org. 60 IN A 192.0.2.%d", i))
	}
	ts, src := actionServer(t, &Actions{LoadBalance: &action.LoadBalance{}}, list...)
	orders := make(map[string]bool)
	for range 40 {
		r := ts.ask(t, "udp", query("many.example.org.", dns.TypeA))
		orders[summary(r)] = true
		answers := make([]string, 0, 8)
		for _, rr := range r.Answer {
			answers = append(answers, rr.(*dns.A).A.String())
		}
		if slices.Sort(answers); len(slices.Compact(answers)) != 8 {
			t.Fatalf("answers %v", answers)
		}
	}
	// With 8! orders, two orders in 40 replies have a probability below 1e-170.
	if len(orders) < 3 {
		t.Errorf("%d orders in 40 replies", len(orders))
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("%d questions reached the source, want 1", n)
	}
}

func TestBufsize(t *testing.T) {
	src := sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) { return reply(t, m, withTXT(12)...), nil })
	z := zone("example.org.", newCache(t), src)
	z.Actions = &Actions{MaxUDP: 600}
	ts := newTestServer(t, Config{}, z)
	for range 2 { // a miss and a hit
		m := query("big.example.org.", dns.TypeTXT, withEDNS(1232, false))
		r := ts.ask(t, "udp", m)
		r.Compress = true
		if n := r.Len(); !r.Truncated || n > 600 {
			t.Errorf("%d bytes, truncated %v", n, r.Truncated)
		}
		if r := ts.ask(t, "tcp", m); r.Truncated || len(r.Answer) != 12 {
			t.Errorf("over TCP: truncated %v, %d answers", r.Truncated, len(r.Answer))
		}
	}
}

func TestNSID(t *testing.T) {
	ts, _ := actionServer(t, &Actions{NSID: "node-1"}, "a.example.org. 60 IN A 192.0.2.1")
	asking := func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	}
	for range 2 { // a miss and a hit
		r := ts.ask(t, "udp", query("a.example.org.", dns.TypeA, asking))
		if got := nsidOf(r); got != "node-1" || len(r.Answer) != 1 {
			t.Errorf("NSID %q in %v", got, r)
		}
		if got := nsidOf(ts.ask(t, "udp", query("a.example.org.", dns.TypeA, withEDNS(1232, false)))); got != "" {
			t.Errorf("NSID %q that the client did not request", got)
		}
	}
}

func nsidOf(r *dns.Msg) string {
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if n, ok := o.(*dns.EDNS0_NSID); ok {
				text, _ := hex.DecodeString(n.Nsid)
				return string(text)
			}
		}
	}
	return ""
}

// TestWhoami sends queries from two ports. Neither gets the other's answer from the
// cache.
func TestWhoami(t *testing.T) {
	z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "whoami", Client: action.Whoami{}}}}
	ts := newTestServer(t, Config{}, z)
	for _, network := range []string{"udp", "tcp"} {
		for range 2 {
			c, err := dns.DialTimeout(network, ts.addr.String(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			r, err := c.ReadMsg()
			if err != nil || len(r.Extra) != 2 {
				t.Fatalf("reply %v, error %v", r, err)
			}
			local := c.LocalAddr()
			port := 0
			switch a := local.(type) {
			case *net.UDPAddr:
				port = a.Port
			case *net.TCPAddr:
				port = a.Port
			}
			srv := r.Extra[1].(*dns.SRV)
			if r.Extra[0].(*dns.A).A.String() != "127.0.0.1" || int(srv.Port) != port || srv.Hdr.Name != "_"+network+".www.example.org." {
				t.Errorf("%v, want port %d", r.Extra, port)
			}
		}
	}
}
