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

// from sends a query from a loopback address.
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

// TestReplyMakesRoom: a client that sends one query after another never exceeds a
// limit of one.
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

// boundZones makes n zones of one table.
func boundZones(n int) []*boundZone {
	t := &zoneTable{zones: make(map[string]*boundZone)}
	var all []*boundZone
	for i := range n {
		z := &boundZone{Zone: new(Zone), table: t}
		t.zones[fmt.Sprint(i)] = z
		all = append(all, z)
	}
	return all
}

// empty fails the test if m still counts something.
func (m *misses) empty(t *testing.T, zones ...*boundZone) {
	t.Helper()
	for i := range m.shards {
		if n := len(m.shards[i].active); n != 0 {
			t.Errorf("%d clients without a miss are stored", n)
		}
	}
	for i, z := range zones {
		if n := z.active.Load(); n != 0 {
			t.Errorf("zone %d counts %d misses", i, n)
		}
	}
	if all, own, n := m.active.Load(), m.own.Load(), m.zones.Load(); all != 0 || own != 0 || n != 0 {
		t.Errorf("%d misses are counted, %d of nodens itself, %d zones", all, own, n)
	}
}

func TestMissesOfClient(t *testing.T) {
	m, zones := newMisses(100, 2), boundZones(2)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	steps := []struct {
		zone   int
		client netip.Addr
		want   error
	}{{0, a, nil}, {0, a, nil}, {0, a, refusedClient}, {1, a, nil}, {0, b, nil}, {0, a, refusedClient}}
	for i, step := range steps {
		if err := m.acquire(zones[step.zone], step.client, forClient); err != step.want {
			t.Fatalf("step %d: %v, want %v", i, err, step.want)
		}
	}
	m.release(zones[0], a, forClient)
	if err := m.acquire(zones[0], a, forClient); err != nil {
		t.Errorf("after a release: %v", err)
	}
	for _, step := range steps {
		if step.want == nil {
			m.release(zones[step.zone], step.client, forClient)
		}
	}
	m.empty(t, zones...)
}

// TestMissesInAll: at the limit, a refused query changes no count. A query that
// continues without its client counts above the limit.
func TestMissesInAll(t *testing.T) {
	m, z := newMisses(2, 2), boundZones(1)[0]
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range 2 {
		if err := m.acquire(z, a, forClient); err != nil {
			t.Fatalf("miss %d: %v", i, err)
		}
	}
	for range 5 {
		if err := m.acquire(z, b, forClient); err != refusedAll {
			t.Fatalf("above the limit: %v", err)
		}
	}
	m.release(z, a, forClient)
	m.charge(z, b)
	if err := m.acquire(z, b, forClient); err != refusedAll {
		t.Errorf("above the limit by a charge: %v", err)
	}
	m.release(z, a, forClient)
	for i := range 2 { // the limit holds for b as if it had not been refused
		if err := m.acquire(z, b, forClient); (err == nil) != (i == 0) {
			t.Errorf("b's miss %d: %v", i, err)
		}
	}
	m.release(z, b, forClient)
	m.release(z, b, forClient)
	m.empty(t, z)
}

// TestMissesForItself: queries that no client has sent leave half of the slots of each
// client, and half of all, to the clients. Clients' queries do not use their half.
func TestMissesForItself(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	type step struct {
		client netip.Addr
		kind   slotKind
		want   error
	}
	for _, steps := range [][]step{
		{
			{a, forItself, nil}, {a, forItself, nil}, {a, forItself, nil}, {a, forItself, refusedClient},
			{b, forItself, nil}, {b, forItself, refusedAll}, {b, forClient, nil},
			{a, forClient, nil}, {a, forClient, nil}, {a, forClient, nil}, {a, forClient, refusedClient},
			{b, forClient, refusedAll},
		},
		{
			{a, forClient, nil}, {a, forClient, nil}, {a, forClient, nil}, {a, forClient, nil},
			{a, forItself, nil}, {a, forItself, nil}, {a, forItself, refusedClient},
			{b, forItself, nil}, {b, forItself, nil}, {b, forItself, refusedAll},
		},
	} {
		m, z := newMisses(8, 6), boundZones(1)[0]
		for i, s := range steps {
			if err := m.acquire(z, s.client, s.kind); err != s.want {
				t.Fatalf("step %d, %+v: %v", i, s, err)
			}
		}
		for _, s := range steps {
			if s.want == nil {
				m.release(z, s.client, s.kind)
			}
		}
		m.empty(t, z)
	}
}

// TestMissesOfZones: a zone whose upstream is dead does not take the slots of
// the others.
func TestMissesOfZones(t *testing.T) {
	m, zones := newMisses(100, 1000), boundZones(3)
	a := netip.MustParseAddr("192.0.2.1")
	fill := func(z *boundZone) (n int) {
		for m.acquire(z, a, forClient) == nil {
			n++
		}
		return n
	}
	if n := fill(zones[0]); n < 70 || n > 85 {
		t.Errorf("the first zone takes %d of 100", n)
	}
	if n := fill(zones[1]); n < 10 || n > 20 {
		t.Errorf("the second takes %d", n)
	}
	if n := fill(zones[2]); n < 1 {
		t.Errorf("nothing is left for the third")
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

// TestBusyZones: in an overload, nodens refuses each zone that has at least an equal share
// of the slots in use. So it refuses at least one zone that has slots, and never one with
// few. Zones without slots do not count.
func TestBusyZones(t *testing.T) {
	for _, tt := range []struct {
		slots []int
		busy  []bool
	}{
		{[]int{0}, []bool{false}},
		{[]int{3}, []bool{true}},
		{[]int{3, 1}, []bool{true, false}},
		{[]int{3, 0}, []bool{true, false}},
		{[]int{4, 4, 4}, []bool{true, true, true}},
		{[]int{5, 4, 3}, []bool{true, true, false}},
		{[]int{4, 4, 4, 0}, []bool{true, true, true, false}},
		{[]int{30, 1, 1, 1}, []bool{true, false, false, false}},
	} {
		m, zones := newMisses(100, 100), boundZones(len(tt.slots)+1)
		client := netip.MustParseAddr("192.0.2.1")
		last := zones[len(tt.slots)] // its slots are released before
		if err := m.acquire(last, client, forClient); err != nil {
			t.Fatal(err)
		}
		for i, n := range tt.slots {
			for range n {
				if err := m.acquire(zones[i], client, forClient); err != nil {
					t.Fatal(err)
				}
			}
		}
		m.release(last, client, forClient)
		for i, want := range tt.busy {
			if got := m.busy(zones[i]); got != want {
				t.Errorf("slots %v, zone %d: busy %v, want %v", tt.slots, i, got, want)
			}
		}
		for i, n := range tt.slots {
			for range n {
				m.release(zones[i], client, forClient)
			}
		}
		m.empty(t, zones...)
	}
}

// TestOverload: misses are refused from when half of a socket's queue is in use until it
// is empty, and no more then.
func TestOverload(t *testing.T) {
	ts := newTestServer(t, Config{Workers: 1, Queue: 256 << 10}, zone(".", newCache(t), example(t)))
	l, err := ts.open(t.Context(), Binding{Addr: nextAddr()}) // no goroutine reads it
	if err != nil {
		t.Fatal(err)
	}
	defer l.closeSockets()
	ts.mu.Lock()
	l.table.Store(ts.listeners[ts.addr].table.Load())
	ts.mu.Unlock()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := 0
	for i, step := range []struct {
		queries int
		want    bool // some are refused
	}{{batchSize + 1, false}, {4000, true}, {batchSize + 1, false}} { // 4000 fill the queue
		before := ts.metrics.missLimited.Load()
		for range step.queries {
			next++
			if _, err := c.Write(pack(t, query(fmt.Sprintf("n%d.example.org.", next), dns.TypeA))); err != nil {
				t.Fatal(err)
			}
		}
		u := l.udp[0]
		if err := u.raw.Read(func(fd uintptr) bool { u.read(fd); return true }); err != nil {
			t.Fatal(err)
		}
		l.jobs.Wait()
		refused := ts.metrics.missLimited.Load() - before
		if got := refused > 0; got != step.want {
			t.Errorf("step %d: %d refused, want some: %v", i, refused, step.want)
		}
		if step.want && refused < 2*batchSize {
			t.Errorf("step %d: %d refused, want all until the queue is empty", i, refused)
		}
	}
}
