package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// from asks from a loopback address.
func (ts *testServer) from(t *testing.T, network, ip string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: 20 * time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(ip)}}}
	if network == "tcp" {
		c.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(ip)}
	}
	r, _, err := c.Exchange(m, ts.addr.String())
	if err != nil {
		t.Fatalf("%s from %s: %v", network, ip, err)
	}
	return r
}

// TestOneClientCannotTakeAllMisses: a client above its limit gets SERVFAIL for
// misses and answers for hits. Other clients get answers for both.
func TestOneClientCannotTakeAllMisses(t *testing.T) {
	const limit = 3
	const greedy, other = "127.0.0.1", "127.0.0.2"
	release := make(chan struct{})
	entered := make(chan struct{}, limit)
	ts := newTestServer(t, Config{MaxMissesPerClient: limit}, zone("example.org.", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Qtype == dns.TypeTXT {
			entered <- struct{}{}
			<-release
		}
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	}))
	ts.from(t, "udp", other, query("hit.example.org.", dns.TypeA))
	var slow sync.WaitGroup
	for i := range limit {
		slow.Go(func() {
			m := query(string(rune('a'+i))+".example.org.", dns.TypeTXT)
			if r := ts.from(t, []string{"udp", "tcp"}[i%2], greedy, m); r.Rcode != dns.RcodeSuccess {
				t.Errorf("within the limit of %d: %v", limit, r)
			}
		})
	}
	for range limit {
		<-entered
	}
	for _, network := range []string{"udp", "tcp"} {
		m := query("one-too-many.example.org.", dns.TypeA, withEDNS(1232, false))
		r := ts.from(t, network, greedy, m)
		if r.Rcode != dns.RcodeServerFailure || len(r.IsEdns0().Option) != 1 {
			t.Errorf("%s, above the limit: %v", network, r)
		}
		if r := ts.from(t, network, greedy, query("hit.example.org.", dns.TypeA)); len(r.Answer) != 1 {
			t.Errorf("%s, a hit of the client at its limit: %v", network, r)
		}
		if r := ts.from(t, network, other, query(network+".example.org.", dns.TypeA)); len(r.Answer) != 1 {
			t.Errorf("%s, a miss of another client: %v", network, r)
		}
	}
	if n := ts.metrics.clientLimited.Load(); n != 2 {
		t.Errorf("%d counted, want 2", n)
	}
	close(release)
	slow.Wait()
	if r := ts.from(t, "udp", greedy, query("again.example.org.", dns.TypeA)); len(r.Answer) != 1 {
		t.Errorf("below the limit again: %v", r)
	}
}

// TestReplyMakesRoom: a client that asks one question after another never
// exceeds a limit of one.
func TestReplyMakesRoom(t *testing.T) {
	ts := newTestServer(t, Config{MaxMissesPerClient: 1}, zone("example.org.", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	}))
	for i := range 500 {
		network := []string{"udp", "tcp"}[i%2]
		if r := ts.ask(t, network, query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)); r.Rcode != dns.RcodeSuccess {
			t.Fatalf("question %d, over %s: %v", i, network, r)
		}
	}
}

func TestQuota(t *testing.T) {
	q := newQuota(2)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, step := range []struct {
		client netip.Addr
		want   bool
	}{{a, true}, {a, true}, {a, false}, {b, true}, {a, false}} {
		if got := q.acquire(step.client); got != step.want {
			t.Fatalf("acquire for %v: %v, want %v", step.client, got, step.want)
		}
	}
	q.release(a)
	if !q.acquire(a) {
		t.Error("cannot acquire after a release")
	}
	for _, c := range []netip.Addr{a, a, b} {
		q.release(c)
	}
	for i := range q.shards {
		if n := len(q.shards[i].active); n != 0 {
			t.Errorf("%d clients without a miss are stored", n)
		}
	}
}

// TestGuardedAddress: clients that are outside are refused, hit or miss, over UDP
// and TCP. The reply is no larger than the query. An address that is not guarded
// answers all clients.
func TestGuardedAddress(t *testing.T) {
	outsider := netip.MustParseAddr("127.0.0.9")
	ts := newTestServer(t, Config{Outside: func(a netip.Addr) bool { return a == outsider }})
	zones := []*Zone{zone("example.org.", newCache(t), example(t))}
	apply := func(guarded bool) {
		t.Helper()
		if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: zones, Guarded: guarded}}); err != nil {
			t.Fatal(err)
		}
	}
	apply(true)
	for _, network := range []string{"udp", "tcp"} {
		if r := ts.from(t, network, "127.0.0.1", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeSuccess {
			t.Errorf("%s, a client that is inside: %v", network, r)
		}
		for _, m := range []*dns.Msg{
			query("www.example.org.", dns.TypeA), query("www.example.org.", dns.TypeMX), query("other.example.", dns.TypeA),
			{Question: []dns.Question{{Name: "version.bind.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}}},
		} {
			r := ts.from(t, network, outsider.String(), m)
			if r.Rcode != dns.RcodeRefused || len(r.Answer)+len(r.Ns)+len(r.Extra) != 0 || r.Len() > m.Len() {
				t.Errorf("%s, outside: %v", network, r)
			}
		}
		r := ts.from(t, network, outsider.String(), query("www.example.org.", dns.TypeA, withEDNS(1232, false)))
		if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeProhibited {
			t.Errorf("%s, outside, options %v", network, r.IsEdns0())
		}
	}
	if n := ts.metrics.outsiders.Load(); n != 10 {
		t.Errorf("%d counted, want 10", n)
	}
	if n, err := testutil.GatherAndCount(ts.reg, "nodens_server_outsiders_refused_total", "nodens_server_client_limited_total"); n != 2 || err != nil {
		t.Errorf("%d metrics, %v", n, err)
	}
	apply(false)
	if r := ts.from(t, "udp", outsider.String(), query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeSuccess {
		t.Errorf("no longer guarded: %v", r)
	}
}
