package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/upstream"
)

const clusterDomain = "cluster.local."

// cluster is an upstream with the names of a cluster, and what it was asked.
type cluster struct {
	mu    sync.Mutex
	names map[string][]string // records by name; nil: an empty non-terminal
	lies  map[string]bool     // names that it denies although they exist
	asked []string            // NAME TYPE
	owner string              // of its SOA
}

func newCluster(names ...string) *cluster {
	c := &cluster{names: map[string][]string{}, lies: map[string]bool{}, owner: clusterDomain}
	for _, n := range append(names, clusterDomain, "svc."+clusterDomain, "default.svc."+clusterDomain) {
		c.names[n] = nil
	}
	c.set("web.default.svc.cluster.local. 30 IN A 10.0.0.1")
	c.set("pod-0.db.default.svc.cluster.local. 30 IN A 10.0.0.2")
	c.names["db.default.svc.cluster.local."] = nil
	return c
}

func (c *cluster) set(record string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, _, _ := strings.Cut(record, " ")
	c.names[name] = append(c.names[name], record)
}

func (c *cluster) lie(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lies[name] = true
}

// take returns the questions since the last call, sorted.
func (c *cluster) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.asked
	c.asked = nil
	slices.Sort(asked)
	return asked
}

// answer follows RFC 8020, except for lies. Denials have a TTL of 5 s.
func (c *cluster) answer(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := m.Question[0]
	c.asked = append(c.asked, q.Name+" "+dns.TypeToString[q.Qtype])
	r := new(dns.Msg).SetReply(m)
	records, ok := c.names[q.Name]
	if !ok || c.lies[q.Name] {
		r.Rcode = dns.RcodeNameError
	}
	for _, s := range records {
		if rr, _ := dns.NewRR(s); rr.Header().Rrtype == q.Qtype && r.Rcode == dns.RcodeSuccess {
			r.Answer = append(r.Answer, rr)
		}
	}
	if len(r.Answer) == 0 {
		soa, err := dns.NewRR(c.owner + " 5 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5")
		if err != nil {
			return nil, err
		}
		r.Ns = []dns.RR{soa}
	}
	return r, nil
}

// cutServer serves clusterDomain with cuts from c, on a clock of its own.
type cutServer struct {
	*testServer
	*cluster
	clock *fakeClock
	zone  *Zone
}

func newCutServer(t *testing.T, c *cluster, more ...NamedSource) *cutServer {
	t.Helper()
	s := &cutServer{cluster: c, clock: &fakeClock{t: time.Now()}}
	s.zone = zone(clusterDomain, cacheAt(t, s.clock.Now), c.answer)
	s.zone.Sources = append(more, s.zone.Sources...)
	var err error
	if s.zone.Cut, err = NewSearchCut([]string{clusterDomain}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.testServer = newTestServer(t, Config{Now: s.clock.Now}, s.zone)
	return s
}

// want asks for name and expects rcode. It returns the reply.
func (s *cutServer) want(t *testing.T, name string, qtype uint16, rcode int, opts ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	r := s.ask(t, "udp", query(name, qtype, opts...))
	if r.Rcode != rcode {
		t.Fatalf("%s %s: %s, want %s", name, dns.TypeToString[qtype], dns.RcodeToString[r.Rcode], dns.RcodeToString[rcode])
	}
	return r
}

// wantAsked waits until the upstream has got as many questions as wanted since the last
// call, and until they are answered. Then it compares them.
func (s *cutServer) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	s.await(t, "questions to the upstream", func() bool {
		s.cluster.mu.Lock()
		defer s.cluster.mu.Unlock()
		return len(s.asked) >= len(want)
	})
	s.await(t, "the end of exchanges", func() bool { return s.misses.active.Load() == 0 })
	slices.Sort(want)
	if got := s.take(); !slices.Equal(got, want) {
		t.Fatalf("the upstream was asked\n%q, want\n%q", got, want)
	}
}

// await waits until done returns true.
func (s *cutServer) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s; the upstream was asked %q", what, s.take())
		}
	}
}

// awaitMetric waits until a counter or gauge has a value.
func (s *cutServer) awaitMetric(t *testing.T, name string, want float64) {
	t.Helper()
	s.await(t, fmt.Sprint(name, " ", want), func() bool { return s.metric(t, name) == want })
}

// TestCutIsFound: which ancestors are asked for after an NXDOMAIN, and what the cuts
// answer then.
func TestCutIsFound(t *testing.T) {
	for _, tt := range []struct {
		name   string
		probes []string
		below  string // not asked upstream afterwards
	}{
		{"www.example.com.default.svc.cluster.local.", []string{"default.svc.cluster.local. A", "com.default.svc.cluster.local. A"}, "a.com.default.svc.cluster.local."},
		{"www.example.com.svc.cluster.local.", []string{"com.svc.cluster.local. A"}, "example.com.svc.cluster.local."},
		{"www.example.com.cluster.local.", []string{"com.cluster.local. A"}, "x.y.com.cluster.local."},
		{"nothing.default.svc.cluster.local.", []string{"default.svc.cluster.local. A"}, ""},
		{"nothing.cluster.local.", nil, "a.nothing.cluster.local."},
		{"_http._tcp.gone.default.svc.cluster.local.", []string{"default.svc.cluster.local. A", "gone.default.svc.cluster.local. A"}, "x.gone.default.svc.cluster.local."},
		{"_http._tcp.default.svc.cluster.local.", []string{"default.svc.cluster.local. A"}, ""},
		{"1-2-3-4.default.pod.cluster.local.", nil, ""},
		{"x.dns.cluster.local.", nil, ""},
		{"1.10.in-addr.arpa.cluster.local.", nil, ""},
		{"a._tcp.cluster.local.", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newCutServer(t, newCluster())
			s.want(t, tt.name, dns.TypeAAAA, dns.RcodeNameError)
			if tt.below != "" && tt.probes == nil { // the name is an ancestor itself
				s.want(t, tt.name, dns.TypeA, dns.RcodeNameError)
				tt.probes = []string{tt.name + " A"}
			}
			s.wantAsked(t, append(tt.probes, tt.name+" AAAA")...)
			if tt.below == "" {
				return
			}
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT} {
				s.want(t, tt.below, qtype, dns.RcodeNameError)
			}
			s.wantAsked(t)
			if got := s.metric(t, "nodens_search_cut_answers_total"); got != 4 {
				t.Errorf("%v answers from cuts, want 4", got)
			}
		})
	}
}

// metric is the sum of a metric's values.
func (s *cutServer) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// findCut makes com.default.svc a cut.
func (s *cutServer) findCut(t *testing.T) {
	t.Helper()
	s.want(t, "a.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t, "a.com.default.svc.cluster.local. A", "default.svc.cluster.local. A", "com.default.svc.cluster.local. A")
	s.want(t, "b.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t)
}

// TestCutReply: SOA, remaining TTL, EDE 29 with EDNS only; DO and CD get no cut.
func TestCutReply(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	s.clock.advance(2 * time.Second)
	name := "A-Long.Name.Which.Is.Longer.Than.the.Cut.COM.default.svc.cluster.local."
	for _, network := range []string{"udp", "tcp"} {
		m := query(name, dns.TypeHTTPS, withEDNS(1232, false))
		r := s.ask(t, network, m)
		soa, ok := r.Ns[0].(*dns.SOA)
		if !ok || len(r.Ns) != 1 || soa.Hdr.Name != clusterDomain || soa.Hdr.Ttl != 3 || soa.Ns != "ns.dns.cluster.local." || soa.Mbox != "hostmaster.cluster.local." || soa.Minttl != 5 {
			t.Errorf("over %s: %v", network, r)
		}
		if r.Authoritative || !r.RecursionAvailable || r.Question[0] != m.Question[0] {
			t.Errorf("over %s: %v", network, r)
		}
		if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeSynthesized {
			t.Errorf("over %s: %v", network, r.IsEdns0())
		}
	}
	if r := s.want(t, name, dns.TypeA, dns.RcodeNameError); r.IsEdns0() != nil {
		t.Errorf("OPT for a client without: %v", r)
	}
	s.wantAsked(t)
	lower := strings.ToLower(name)
	s.want(t, name, dns.TypeA, dns.RcodeNameError, withEDNS(1232, true))
	s.want(t, name, dns.TypeTXT, dns.RcodeNameError, func(m *dns.Msg) { m.CheckingDisabled = true })
	s.wantAsked(t, lower+" A", lower+" TXT")
}

// TestCutIsRefreshed: a cut in use is renewed before it expires, together with a name
// below it. One that is not in use expires.
func TestCutIsRefreshed(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	for i := range 5 {
		s.clock.advance(4800 * time.Millisecond)
		name := fmt.Sprintf("c%d.com.default.svc.cluster.local.", i)
		s.want(t, name, dns.TypeAAAA, dns.RcodeNameError)
		s.wantAsked(t, "com.default.svc.cluster.local. A", name+" AAAA")
	}
	s.clock.advance(6 * time.Second)
	s.want(t, "d.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t, "d.com.default.svc.cluster.local. A", "com.default.svc.cluster.local. A")
}

// cutWaits reports whether a query waits for a cut.
func (s *cutServer) cutWaits() bool {
	s.inflight.mu.Lock()
	defer s.inflight.mu.Unlock()
	for _, x := range s.inflight.byKey {
		if slices.ContainsFunc(x.waiting, func(w waiter) bool { _, ok := w.(*cutWait); return ok }) {
			return true
		}
	}
	return false
}

// TestExpiredCut: of two queries below a cut that has expired, one is asked upstream
// beside the cut, and the other one waits for the cut.
func TestExpiredCut(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	s.zone.Sources[0].Source = sourceFunc(func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Name == "com.default.svc.cluster.local." {
			<-release
		}
		return s.answer(ctx, m)
	})
	s.clock.advance(6 * time.Second)
	const name = "d.com.default.svc.cluster.local."
	s.want(t, name, dns.TypeTXT, dns.RcodeNameError)
	began := time.Now()
	var both sync.WaitGroup
	var done atomic.Int64
	both.Go(func() {
		s.want(t, name, dns.TypeAAAA, dns.RcodeNameError)
		done.Add(1)
	})
	s.await(t, "the second query", func() bool { return s.cutWaits() || done.Load() > 0 })
	free()
	both.Wait()
	inTime := time.Since(began) < emptyWait // else the second query has asked for its own name
	s.await(t, "the end of exchanges", func() bool { return s.misses.active.Load() == 0 })
	if asked, want := s.take(), []string{"com.default.svc.cluster.local. A", name + " TXT"}; inTime && !slices.Equal(asked, want) {
		t.Errorf("the upstream was asked %q, want %q", asked, want)
	}

	// The name above exists now: the one that waits gets its own answer.
	s.clock.advance(6 * time.Second)
	s.set("com.default.svc.cluster.local. 5 IN A 10.0.0.9")
	s.set(name + " 5 IN A 10.0.0.9")
	for _, qtype := range []uint16{dns.TypeTXT, dns.TypeA} {
		both.Go(func() {
			if r := s.ask(t, "udp", query(name, qtype)); r.Rcode != dns.RcodeSuccess {
				t.Errorf("reply %v", r)
			}
		})
	}
	both.Wait()
}

// TestCutEnds: a Service called com appears.
func TestCutEnds(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	s.set("com.default.svc.cluster.local. 5 IN A 10.0.0.9")
	s.set("pod.com.default.svc.cluster.local. 5 IN A 10.0.0.10")
	s.want(t, "pod.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	// Another type of the cut's own name proves that it exists.
	s.want(t, "com.default.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess)
	s.want(t, "pod.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
	s.take()

	s = newCutServer(t, newCluster())
	s.findCut(t)
	s.set("com.default.svc.cluster.local. 5 IN A 10.0.0.9")
	s.set("pod.com.default.svc.cluster.local. 5 IN A 10.0.0.10")
	s.clock.advance(5 * time.Second)
	s.want(t, "pod.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
}

// TestContradiction: the upstream denies a name and has data below it. The first check
// finds it. The cut is not used again, and cuts are off once the denial is repeated.
func TestContradiction(t *testing.T) {
	const child = "good.com.default.svc.cluster.local."
	s := newCutServer(t, newCluster())
	s.set(child + " 5 IN A 10.0.0.9")
	s.lie("com.default.svc.cluster.local.")
	s.findCut(t)
	s.clock.advance(4800 * time.Millisecond)
	s.want(t, child, dns.TypeA, dns.RcodeNameError) // and is checked
	s.wantAsked(t, "com.default.svc.cluster.local. A", child+" A")
	s.awaitMetric(t, "nodens_search_cut_contradictions_total", 1)
	s.want(t, child, dns.TypeA, dns.RcodeSuccess)
	s.clock.advance(7 * time.Second)
	s.want(t, child, dns.TypeA, dns.RcodeSuccess)
	s.want(t, "x.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.awaitMetric(t, "nodens_search_cut_off", 1)
	s.take()
	s.want(t, "www.example.org.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t, "www.example.org.default.svc.cluster.local. A")
	if got := s.metric(t, "nodens_search_cut_contradictions_total"); got != 1 {
		t.Errorf("%v contradictions", got)
	}
}

// TestKnownDataPreventsACut: data below the ancestor is known before the upstream denies
// it, for another type of the name too.
func TestKnownDataPreventsACut(t *testing.T) {
	const child = "good.com.default.svc.cluster.local."
	s := newCutServer(t, newCluster())
	s.set(child + " 60 IN A 10.0.0.9")
	s.lie("com.default.svc.cluster.local.")
	s.want(t, child, dns.TypeA, dns.RcodeSuccess)
	s.want(t, "bad.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.awaitMetric(t, "nodens_search_cut_contradictions_total", 1)
	s.want(t, child, dns.TypeAAAA, dns.RcodeSuccess)
}

// TestCutsAndDataAreOrdered: the answers for a cut and for a name below it arrive at the
// same time, since both are asked together. No cut is left.
func TestCutsAndDataAreOrdered(t *testing.T) {
	for range 100 {
		c, err := NewSearchCut([]string{clusterDomain}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var isCut atomic.Bool
		var below sync.WaitGroup
		c.judge([]byte("\x03com"), time.Now(), time.Second, func() {
			below.Go(func() {
				c.sawBelow([]byte("\x03com"), []byte("\x01a\x03com"), dns.TypeA, time.Now(), time.Minute, func() bool { return isCut.Swap(false) })
			})
			for range 10 {
				runtime.Gosched()
			}
			isCut.Store(true)
		})
		if below.Wait(); isCut.Load() {
			t.Fatal("a cut is left above a name that exists")
		}
	}
}

// TestExpiredDataPreventsACut: the upstream denies an ancestor of a name that existed.
// Before nodens trusts the denial, it asks for that name again.
func TestExpiredDataPreventsACut(t *testing.T) {
	const child = "good.com.default.svc.cluster.local."
	s := newCutServer(t, newCluster())
	s.set(child + " 5 IN A 10.0.0.9")
	s.lie("com.default.svc.cluster.local.")
	s.want(t, child, dns.TypeA, dns.RcodeSuccess)
	for i := range 2 {
		s.clock.advance(7 * time.Second)
		s.want(t, fmt.Sprintf("bad%d.com.default.svc.cluster.local.", i), dns.TypeA, dns.RcodeNameError)
		s.await(t, "a probe", func() bool { return slices.Contains(s.take(), "com.default.svc.cluster.local. A") })
		s.await(t, "its end", func() bool { return s.misses.active.Load() == 0 })
		s.want(t, child, dns.TypeA, dns.RcodeSuccess)
	}
	s.awaitMetric(t, "nodens_search_cut_off", 1)
}

// TestUncachedDenialEndsWaiting: the upstream has denied an ancestor, and then its answer
// for it cannot be cached. The queries below it that wait for the ancestor must all ask
// for their own names, without waiting again.
func TestUncachedDenialEndsWaiting(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	const n = 20
	release := make(chan struct{})
	var mu sync.Mutex
	asked := 0 // for the ancestor
	s.zone.Sources[0].Source = sourceFunc(func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Name != "com.default.svc.cluster.local." {
			return s.answer(ctx, m)
		}
		mu.Lock()
		asked++
		mu.Unlock()
		<-release
		return new(dns.Msg).SetRcode(m, dns.RcodeRefused), nil
	})
	s.clock.advance(6 * time.Second)
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range n {
		all.Go(func() {
			s.want(t, fmt.Sprintf("d%d.com.default.svc.cluster.local.", i), dns.TypeA, dns.RcodeNameError)
			done.Add(1)
		})
	}
	s.await(t, "the queries", func() bool { return s.misses.active.Load()+done.Load() >= n })
	close(release)
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	if asked > 4 {
		t.Errorf("the ancestor was asked for %d times", asked)
	}
}

// TestFailedRenewalOfACut: a cut has expired, and the upstream fails to answer for it, or
// not before the client gives up. The queries that wait for it get their own answers.
func TestFailedRenewalOfACut(t *testing.T) {
	for _, failure := range []error{upstream.ErrDown, errors.New("broken"), nil} { // nil: no answer
		t.Run(fmt.Sprint(failure), func(t *testing.T) {
			s := newCutServer(t, newCluster())
			s.findCut(t)
			release := make(chan struct{})
			free := sync.OnceFunc(func() { close(release) })
			t.Cleanup(free)
			s.zone.Sources[0].Source = sourceFunc(func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
				if m.Question[0].Name != "com.default.svc.cluster.local." {
					return s.answer(ctx, m)
				}
				<-release
				return nil, cmp.Or(failure, upstream.ErrDown)
			})
			s.clock.advance(6 * time.Second)
			const n = 5
			s.want(t, "first.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
			var all sync.WaitGroup
			var done atomic.Int64
			for i := range n {
				all.Go(func() {
					s.want(t, fmt.Sprintf("d%d.com.default.svc.cluster.local.", i), dns.TypeA, dns.RcodeNameError)
					done.Add(1)
				})
			}
			if failure != nil {
				s.await(t, "the queries", func() bool { return s.misses.active.Load()+done.Load() > n })
				free()
			}
			all.Wait()
		})
	}
}

// TestDenialsOfOtherZones: only a denial from a zone at or below the domain is a cut. A
// public resolver denies names in the cluster domain with the SOA of the root.
func TestDenialsOfOtherZones(t *testing.T) {
	for zone, cut := range map[string]bool{".": false, "local.": false, "Cluster.Local.": true, "svc.cluster.local.": true} {
		t.Run(zone, func(t *testing.T) {
			c := newCluster()
			c.owner = zone
			s := newCutServer(t, c)
			s.want(t, "prod.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
			s.set("web.prod.svc.cluster.local. 5 IN A 10.0.0.9")
			want := dns.RcodeSuccess
			if cut {
				want = dns.RcodeNameError
			}
			s.want(t, "web.prod.svc.cluster.local.", dns.TypeA, want)
		})
	}
}

// TestStartingStatefulSet: an upstream that denies a headless Service without endpoints.
// When its first pod starts, that is no contradiction.
func TestStartingStatefulSet(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	s.set("com.default.svc.cluster.local. 5 IN A 10.0.0.10")
	s.set("pod-0.com.default.svc.cluster.local. 5 IN A 10.0.0.10")
	s.lie("com.default.svc.cluster.local.") // its cache still has the denial
	s.clock.advance(4800 * time.Millisecond)
	s.want(t, "pod-0.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.awaitMetric(t, "nodens_search_cut_contradictions_total", 1)
	s.want(t, "pod-0.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
	s.cluster.mu.Lock()
	clear(s.lies)
	s.cluster.mu.Unlock()
	for range 4 {
		s.clock.advance(7 * time.Second)
		s.want(t, "pod-0.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
		s.want(t, "pod-1.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
		s.await(t, "a probe", func() bool { return slices.Contains(s.take(), "com.default.svc.cluster.local. A") })
		s.await(t, "its end", func() bool { return s.misses.active.Load() == 0 })
	}
	if s.metric(t, "nodens_search_cut_off") != 0 {
		t.Error("cuts are off")
	}
}

// TestDeletedService: pods of a deleted Service are still in caches. That is no
// contradiction.
func TestDeletedService(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.want(t, "pod-0.db.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
	s.cluster.mu.Lock()
	delete(s.names, "db.default.svc.cluster.local.")
	delete(s.names, "pod-0.db.default.svc.cluster.local.")
	s.cluster.mu.Unlock()
	for s.metric(t, "nodens_search_cut_found_total") == 0 {
		found := s.metric(t, "nodens_search_cut_queries_total")
		s.want(t, "pod-1.db.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
		s.await(t, "a probe", func() bool { return s.metric(t, "nodens_search_cut_queries_total") > found })
		s.await(t, "its end", func() bool { return s.misses.active.Load() == 0 })
		s.clock.advance(6 * time.Second)
	}
	if s.metric(t, "nodens_search_cut_off") != 0 {
		t.Error("cuts are off")
	}
	if s.metric(t, "nodens_search_cut_contradictions_total") != 1 {
		t.Error("the known pod does not prevent a cut")
	}
}

// TestLocalSourcesWin: hosts and template come before a cut.
func TestLocalSourcesWin(t *testing.T) {
	const local = "db.com.default.svc.cluster.local."
	hosts := NamedSource{Name: "hosts", Source: sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Name == local {
			return reply(t, m, local+" 5 IN A 192.0.2.1"), nil
		}
		return nil, upstream.ErrNotMine
	})}
	s := newCutServer(t, newCluster(), hosts)
	s.findCut(t)
	s.want(t, local, dns.TypeA, dns.RcodeSuccess)
	s.want(t, "other.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t)
	if s.metric(t, "nodens_search_cut_contradictions_total") != 0 {
		t.Error("a local answer counts as a contradiction")
	}
	s.clock.advance(4800 * time.Millisecond)
	s.want(t, "fresh.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	s.wantAsked(t, "com.default.svc.cluster.local. A", "fresh.com.default.svc.cluster.local. A")
}

// TestStaleCut: while the upstream fails, an expired cut answers like an expired denial.
func TestStaleCut(t *testing.T) {
	for _, verify := range []bool{false, true} {
		t.Run(fmt.Sprint("verify ", verify), func(t *testing.T) {
			s := newCutServer(t, newCluster())
			s.zone = zone(clusterDomain, cache.New(cache.Options{Now: s.clock.Now}).Cache("x", cache.Policy{
				Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour},
				ServFail: 5 * time.Second, StaleFor: time.Hour, StaleVerify: verify,
			}), nil)
			var down bool
			var mu sync.Mutex
			s.zone.Sources[0].Source = sourceFunc(func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
				mu.Lock()
				defer mu.Unlock()
				if down {
					return nil, context.DeadlineExceeded
				}
				return s.answer(ctx, m)
			})
			var err error
			if s.zone.Cut, err = NewSearchCut([]string{clusterDomain}, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			if err := s.Apply(t.Context(), []Binding{{Addr: s.addr, Zones: []*Zone{s.zone}}}); err != nil {
				t.Fatal(err)
			}
			s.findCut(t)
			mu.Lock()
			down = true
			mu.Unlock()
			s.clock.advance(time.Minute)
			r := s.want(t, "new.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, withEDNS(1232, false))
			if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeStaleNXDOMAINAnswer || r.Ns[0].Header().Ttl != 30 {
				t.Errorf("reply %v", r)
			}
			mu.Lock()
			down = false
			mu.Unlock()
			s.clock.advance(10 * time.Second)
			s.set("com.default.svc.cluster.local. 5 IN A 10.0.0.9")
			s.set("late.com.default.svc.cluster.local. 5 IN A 10.0.0.9")
			s.want(t, "late.com.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess)
		})
	}
}

// TestCutsDoNotAllocate: an answer from a cut is a hit.
func TestCutsDoNotAllocate(t *testing.T) {
	s := newCutServer(t, newCluster())
	s.findCut(t)
	wantNoAllocs(t, s.testServer, "below a cut", "www.example.com.default.svc.cluster.local.", dns.RcodeNameError)
}

// BenchmarkCut compares a cached denial with an answer from a cut.
func BenchmarkCut(b *testing.B) {
	c := newCluster()
	z := zone(clusterDomain, newCache(b), c.answer)
	var err error
	if z.Cut, err = NewSearchCut([]string{clusterDomain}, slog.New(slog.DiscardHandler)); err != nil {
		b.Fatal(err)
	}
	ts := newTestServer(b, Config{}, z)
	l := ts.listener()
	const name = "www.example.com.default.svc.cluster.local."
	ts.ask(b, "udp", query(name, dns.TypeA))
	out := make([]byte, 0, 2048)
	for _, bench := range []struct {
		name, ask string
		prepare   func()
	}{
		{"denial", name, func() {}},
		{"cut-inner", "ftp.example.com.default.svc.cluster.local.", func() {}},
		{"cut-outer", "ftp.example.com.svc.cluster.local.", func() { ts.ask(b, "udp", query("www.example.com.svc.cluster.local.", dns.TypeA)) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			q := Query{memory: &lookupMemory{batch: true, tallies: make([]tally, 0, batchSize)}, client: netip.MustParseAddrPort("127.0.0.1:1")}
			msg := pack(b, query(bench.ask, dns.TypeA))
			for { // also after the denial has expired
				ts.ask(b, "udp", query(name, dns.TypeA))
				bench.prepare()
				if q.start = ts.clock(); func() bool { _, ok := ts.tryHit(out, l, 0, &q, q.parse(msg)); return ok }() {
					break
				}
			}
			b.ReportAllocs()
			start := ts.clock()
			for b.Loop() {
				q.start, q.memory.tallies = start, q.memory.tallies[:0]
				if _, ok := ts.tryHit(out, l, 0, &q, q.parse(msg)); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}
