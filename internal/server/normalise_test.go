package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// kind is the kind of a scripted answer for one type of one name.
type kind string

const (
	data      kind = "data"
	nodata    kind = "nodata"     // NOERROR 0/0/0
	nodataSOA kind = "nodata+soa" // NOERROR with SOA
	nx        kind = "nxdomain"
	nxBare    kind = "nxdomain-bare"
	alias     kind = "cname"       // CNAME whose target has no data
	aliasNX   kind = "cname+nx"    // CNAME whose target does not exist
	fail      kind = "servfail"    // an error
	late      kind = "late"        // an error after the wait for a sibling
	referral  kind = "referral"    // NS without SOA
	nsec      kind = "nsec"        // NODATA proved by NSEC
	nsecNX    kind = "nsec-nxname" // RFC 9824
	nodataAD  kind = "nodata-ad"
)

// lateAfter is the wait for a sibling in tests with a late one. All other limits
// are long enough for a slow machine.
const lateAfter = 20 * time.Millisecond

// answerAs makes the reply of the given kind.
func answerAs(t testing.TB, ctx context.Context, m *dns.Msg, k kind) (*dns.Msg, error) {
	name := m.Question[0].Name
	soa := "example.com. 60 IN SOA ns.example.com. h.example.com. 1 1 1 1 60"
	r := reply(t, m)
	ns := func(rrs ...string) { r.Ns = reply(t, m, rrs...).Answer }
	switch k {
	case data:
		rr := name + " 60 IN A 192.0.2.1"
		if m.Question[0].Qtype == dns.TypeAAAA {
			rr = name + " 60 IN AAAA 2001:db8::1"
		}
		r.Answer = reply(t, m, rr).Answer
	case nodata:
	case nodataSOA:
		ns(soa)
	case nx, nxBare:
		r.Rcode = dns.RcodeNameError
		if k == nx {
			ns(soa)
		}
	case alias, aliasNX:
		r.Answer = reply(t, m, name+" 60 IN CNAME nowhere.example.net.").Answer
		ns("example.net. 60 IN SOA ns.example.net. h.example.net. 1 1 1 1 60")
		if k == aliasNX {
			r.Rcode = dns.RcodeNameError
		}
	case referral:
		ns("example.com. 60 IN NS ns.example.com.")
	case nsec:
		ns(soa, name+" 60 IN NSEC \\000."+name+" A MX RRSIG NSEC")
	case nsecNX:
		ns(soa, name+" 60 IN NSEC \\000."+name+" RRSIG NSEC TYPE128")
	case nodataAD:
		r.AuthenticatedData = true
		ns(soa)
	case late:
		select {
		case <-ctx.Done():
		case <-time.After(3 * lateAfter):
		}
		return nil, errors.New("servfail")
	default:
		return nil, errors.New("servfail")
	}
	return r, nil
}

// scripted is a source with the kinds of answer of each name: for A and AAAA.
type scripted struct {
	t      testing.TB
	mu     sync.Mutex
	zones  map[string][2]kind
	asked  map[string]int
	before func(m *dns.Msg) // called before each answer
}

func (s *scripted) exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	name := strings.ToLower(m.Question[0].Name)
	i := boolIndex(m.Question[0].Qtype == dns.TypeAAAA)
	s.mu.Lock()
	k := s.zones[name][i]
	s.asked[fmt.Sprint(name, i)]++
	s.mu.Unlock()
	if s.before != nil {
		s.before(m)
	}
	if m.Question[0].Qtype != dns.TypeA && m.Question[0].Qtype != dns.TypeAAAA {
		k = nodata
	}
	return answerAs(s.t, ctx, m, k)
}

// counts is the number of queries for each question.
func (s *scripted) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked)
}

// normaliseServer serves "." with normalize for example.com. Its cache entries
// do not expire.
func normaliseServer(t testing.TB, c NormaliseConfig, src *scripted) *testServer {
	t.Helper()
	if c.Suffixes == nil {
		c.Suffixes = []string{"example.com.", "corp."}
	}
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	c.Except = append(c.Except, "stub.example.com.")
	c.TTL = 5 * time.Second
	n, err := NewNormalise(c)
	if err != nil {
		t.Fatal(err)
	}
	src.t, src.asked = t, make(map[string]int)
	now := &fakeClock{t: time.Now()}
	z := zone(".", cacheAt(t, now.Now), src.exchange)
	z.Normalise = n
	return newTestServer(t, Config{Now: now.Now, Timeout: 20 * time.Second}, z)
}

func TestNormaliseTable(t *testing.T) {
	for _, c := range []struct {
		a, aaaa       kind
		wantA, wantA6 int // rcodes
	}{
		{nodata, nodata, dns.RcodeNameError, dns.RcodeNameError},
		{nodataSOA, nodataSOA, dns.RcodeNameError, dns.RcodeNameError},
		{nodata, nx, dns.RcodeNameError, dns.RcodeNameError},
		{nx, nodata, dns.RcodeNameError, dns.RcodeNameError},
		{nodata, nxBare, dns.RcodeNameError, dns.RcodeNameError},
		{nx, nx, dns.RcodeNameError, dns.RcodeNameError},
		{data, nx, dns.RcodeSuccess, dns.RcodeSuccess},
		{nx, data, dns.RcodeSuccess, dns.RcodeSuccess},
		{data, nodata, dns.RcodeSuccess, dns.RcodeSuccess},
		{nodata, data, dns.RcodeSuccess, dns.RcodeSuccess},
		{data, data, dns.RcodeSuccess, dns.RcodeSuccess},
		{alias, nodata, dns.RcodeSuccess, dns.RcodeSuccess},
		{alias, alias, dns.RcodeSuccess, dns.RcodeSuccess},
		{aliasNX, aliasNX, dns.RcodeNameError, dns.RcodeNameError},
		{nodata, fail, dns.RcodeSuccess, dns.RcodeServerFailure},
		{nodata, late, dns.RcodeSuccess, dns.RcodeServerFailure},
		{referral, referral, dns.RcodeSuccess, dns.RcodeSuccess},
		{nsec, nodata, dns.RcodeSuccess, dns.RcodeNameError},
		{nsecNX, nsecNX, dns.RcodeNameError, dns.RcodeNameError},
		{nodataAD, nodataAD, dns.RcodeSuccess, dns.RcodeSuccess},
	} {
		for _, order := range [][2]uint16{{dns.TypeA, dns.TypeAAAA}, {dns.TypeAAAA, dns.TypeA}} {
			t.Run(fmt.Sprintf("%s,%s %s first", c.a, c.aaaa, dns.Type(order[0])), func(t *testing.T) {
				src := &scripted{zones: map[string][2]kind{"x.example.com.": {c.a, c.aaaa}}}
				cfg := NormaliseConfig{Repair: true}
				if c.aaaa == late {
					cfg.Timeout = lateAfter
				}
				ts := normaliseServer(t, cfg, src)
				for _, round := range []string{"miss", "hit"} {
					for _, qtype := range order {
						want := c.wantA
						if qtype == dns.TypeAAAA {
							want = c.wantA6
						}
						r := ts.ask(t, "udp", query("x.example.com.", qtype))
						if r.Rcode != want || !r.RecursionAvailable {
							t.Errorf("%s %s: %s, want %s", round, dns.Type(qtype), dns.RcodeToString[r.Rcode], dns.RcodeToString[want])
						}
						if r.Rcode == dns.RcodeNameError && r.Authoritative {
							t.Errorf("%s %s: AA on a synthesised reply", round, dns.Type(qtype))
						}
					}
				}
				for q, n := range src.counts() {
					if n > 1 && c.a != fail && c.aaaa != fail && c.aaaa != late && c.a != referral {
						t.Errorf("%s asked %d times", q, n)
					}
				}
			})
		}
	}
}

func TestNormaliseLeavesAlone(t *testing.T) {
	empty := [2]kind{nodata, nodata}
	src := &scripted{zones: map[string][2]kind{
		"x.example.com.": empty, "example.com.": empty, "x.example.org.": empty,
		"xexample.com.": empty, "x.stub.example.com.": empty, "stub.example.com.": empty,
	}}
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	for name, q := range map[string]*dns.Msg{
		"the suffix itself":    query("example.com.", dns.TypeA),
		"another name":         query("x.example.org.", dns.TypeA),
		"not at a label":       query("xexample.com.", dns.TypeA),
		"below an exception":   query("x.stub.example.com.", dns.TypeA),
		"the exception itself": query("stub.example.com.", dns.TypeA),
		"another type":         query("x.example.com.", dns.TypeMX),
		"DO":                   query("x.example.com.", dns.TypeA, withEDNS(1232, true)),
		"CD":                   query("x.example.com.", dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled = true }),
	} {
		for range 2 {
			if r := ts.ask(t, "udp", q); r.Rcode != dns.RcodeSuccess {
				t.Errorf("%s: %s", name, dns.RcodeToString[r.Rcode])
			}
		}
	}
	r := ts.ask(t, "udp", query("X.example.COM.", dns.TypeA, withEDNS(1232, false)))
	if r.Rcode != dns.RcodeNameError || r.Question[0].Name != "X.example.COM." {
		t.Fatalf("control: %v", r)
	}
	if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeSynthesized {
		t.Errorf("options %v", r.IsEdns0().Option)
	}
}

func TestNormaliseModes(t *testing.T) {
	zones := func() *scripted {
		return &scripted{zones: map[string][2]kind{"bare.example.com.": {nodata, nodata}, "soa.example.com.": {nodataSOA, nodataSOA}, "rev.example.com.": {data, nx}}}
	}
	for _, c := range []struct {
		name           string
		cfg            NormaliseConfig
		bare, soa, rev int
	}{
		{"sibling any", NormaliseConfig{Repair: true}, dns.RcodeNameError, dns.RcodeNameError, dns.RcodeSuccess},
		{"bare only", NormaliseConfig{Repair: true, Bare: true}, dns.RcodeNameError, dns.RcodeSuccess, dns.RcodeSuccess},
		{"no repair", NormaliseConfig{}, dns.RcodeNameError, dns.RcodeNameError, dns.RcodeNameError},
		{"observe", NormaliseConfig{Repair: true, Observe: true}, dns.RcodeSuccess, dns.RcodeSuccess, dns.RcodeNameError},
	} {
		t.Run(c.name, func(t *testing.T) {
			ts := normaliseServer(t, c.cfg, zones())
			for range 2 {
				for name, want := range map[string]int{"bare": c.bare, "soa": c.soa, "rev": c.rev} {
					r := ts.ask(t, "udp", query(name+".example.com.", dns.TypeAAAA))
					if r.Rcode != want {
						t.Errorf("%s: %s", name, dns.RcodeToString[r.Rcode])
					}
				}
			}
		})
	}
}

// TestNormaliseTTL: an empty answer whose sibling is unknown is not valid for
// long. A synthesised NXDOMAIN has no SOA, so that it cannot be cached at all.
func TestNormaliseTTL(t *testing.T) {
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {nodataSOA, fail}, "y.example.com.": {nodataSOA, nodata}}}
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA)); r.Rcode != dns.RcodeSuccess || len(r.Ns) != 1 || r.Ns[0].Header().Ttl > 5 {
		t.Errorf("unknown sibling: %v", r)
	}
	for _, how := range []string{"miss", "hit"} {
		if r := ts.ask(t, "udp", query("y.example.com.", dns.TypeA)); r.Rcode != dns.RcodeNameError || len(r.Ns) != 0 {
			t.Errorf("synthesised, %s: %v", how, r)
		}
	}
}

// TestNormaliseJoinsInflight: a sibling that is in flight is not queried again.
func TestNormaliseJoinsInflight(t *testing.T) {
	var waiting sync.WaitGroup
	waiting.Add(2)
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {nodata, nx}}}
	src.before = func(*dns.Msg) { waiting.Done(); waiting.Wait() }
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	var wg sync.WaitGroup
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		wg.Go(func() {
			if r := ts.ask(t, "udp", query("x.example.com.", qtype)); r.Rcode != dns.RcodeNameError {
				t.Errorf("%s: %s", dns.Type(qtype), dns.RcodeToString[r.Rcode])
			}
		})
	}
	wg.Wait()
	for q, n := range src.counts() {
		if n != 1 {
			t.Errorf("%s asked %d times", q, n)
		}
	}
}

// TestNormaliseStaleData: a name with an expired address exists, while upstream
// is down.
func TestNormaliseStaleData(t *testing.T) {
	now := &fakeClock{t: time.Now()}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour},
		ServFail: time.Second, StaleFor: time.Hour, StaleVerify: true,
	})
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	z := zone(".", c, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Qtype == dns.TypeA {
			if down.Load() {
				return nil, errors.New("down")
			}
			return answerAs(t, ctx, m, data)
		}
		return answerAs(t, ctx, m, nodataSOA)
	})
	z.Normalise = n
	ts := newTestServer(t, Config{Now: now.Now}, z)
	ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
	down.Store(true)
	now.advance(10 * time.Minute)
	for range 2 {
		if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeAAAA)); r.Rcode != dns.RcodeSuccess {
			t.Errorf("AAAA: %s", dns.RcodeToString[r.Rcode])
		}
		if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA)); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
			t.Errorf("A: %v", r)
		}
	}
}

// TestNormaliseLateSibling: while the answer for the other type is late, an
// NXDOMAIN is passed on, but not for long.
func TestNormaliseLateSibling(t *testing.T) {
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {nx, data}}}
	release := make(chan struct{})
	src.before = func(m *dns.Msg) {
		if m.Question[0].Qtype == dns.TypeAAAA {
			<-release
		}
	}
	ts := normaliseServer(t, NormaliseConfig{Repair: true, Timeout: lateAfter}, src)
	r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
	if r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 || r.Ns[0].Header().Ttl > 5 {
		t.Errorf("A while AAAA is late: %v", r)
	}
	close(release)
	if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeAAAA)); len(r.Answer) != 1 {
		t.Errorf("AAAA: %v", r)
	}
}

// TestNormaliseFailedSibling: an NXDOMAIN whose sibling failed is passed on, but not for
// long, also while the failure is cached. It stays longer once the sibling is denied.
func TestNormaliseFailedSibling(t *testing.T) {
	overloaded := fmt.Errorf("forward: %w", upstream.ErrOverloaded) // is not cached
	for name, failure := range map[string]error{"SERVFAIL": errors.New("servfail"), "overload": overloaded} {
		t.Run(name, func(t *testing.T) {
			var recovered atomic.Bool
			now := &fakeClock{t: time.Now()}
			z := normaliseZone(t, now, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
				if m.Question[0].Qtype == dns.TypeAAAA && !recovered.Load() {
					return nil, failure
				}
				return answerAs(t, ctx, m, nx)
			})
			ts := newTestServer(t, Config{Now: now.Now}, z)
			for range 2 {
				r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
				if r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 || r.Ns[0].Header().Ttl > unknownTTL {
					t.Errorf("A while AAAA fails: %v", r)
				}
			}
			recovered.Store(true)
			now.advance(10 * time.Second)
			r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
			if r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 || r.Ns[0].Header().Ttl <= unknownTTL {
				t.Errorf("A while AAAA is denied: %v", r)
			}
		})
	}
}

// normaliseZone is a zone with normalize for example.com and a cache.
func normaliseZone(t *testing.T, now *fakeClock, source func(context.Context, *dns.Msg) (*dns.Msg, error)) *Zone {
	t.Helper()
	z := zone(".", cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour}, ServFail: 5 * time.Second,
	}), source)
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	z.Normalise = n
	return z
}

// TestNormaliseRefusedSibling: an NXDOMAIN whose sibling is not asked for lack of slots
// is passed on, but not for long. With slots, the name's address is found.
func TestNormaliseRefusedSibling(t *testing.T) {
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {nx, data}}}
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	z, taken := boundZones(1)[0], []netip.Addr(nil)
	for c := netip.MustParseAddr("192.0.2.1"); ; c = c.Next() {
		var err error
		for err == nil {
			if err = ts.misses.acquire(z, c, forItself); err == nil {
				taken = append(taken, c)
			}
		}
		if err == refusedAll {
			break
		}
	}
	r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
	if r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 || r.Ns[0].Header().Ttl > unknownTTL {
		t.Errorf("A while AAAA is refused: %v", r)
	}
	if n := src.counts()["x.example.com.1"]; n != 0 {
		t.Errorf("AAAA was asked %d times", n)
	}
	for _, c := range taken {
		ts.misses.release(z, c, forItself)
	}
	if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA)); r.Rcode != dns.RcodeSuccess {
		t.Errorf("A: %v", r)
	}
	waitFor(t, "the release of all slots", func() bool { return ts.misses.active.Load() == 0 && ts.misses.own.Load() == 0 })
}

// TestSiblingsHoldSlots: the query for a sibling holds a slot of its client until the query
// ends, even after the client has its answer. An observer holds one, too.
func TestSiblingsHoldSlots(t *testing.T) {
	for name, tt := range map[string]struct {
		config NormaliseConfig
		slots  int64
	}{
		"sibling":  {NormaliseConfig{Repair: true, Timeout: lateAfter}, 1},
		"observer": {NormaliseConfig{Repair: true, Observe: true}, 2}, // its own and the query's
	} {
		t.Run(name, func(t *testing.T) {
			src := &scripted{zones: map[string][2]kind{"x.example.com.": {nx, data}}}
			release := make(chan struct{})
			src.before = func(m *dns.Msg) {
				if m.Question[0].Qtype == dns.TypeAAAA {
					<-release
				}
			}
			ts := normaliseServer(t, tt.config, src)
			ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
			m, client := ts.misses, netip.MustParseAddr("127.0.0.1")
			waitFor(t, "the client's slots of a query in flight", func() bool {
				s := m.shard(client)
				s.mu.Lock()
				defer s.mu.Unlock()
				for owner, n := range s.active {
					if owner.client == client && n == (slots{forItself: int(tt.slots)}) {
						return m.active.Load() == tt.slots && m.own.Load() == tt.slots
					}
				}
				return false
			})
			close(release)
			waitFor(t, "the release of all slots", func() bool { return m.active.Load() == 0 && m.own.Load() == 0 })
		})
	}
}

// TestFailureIsAskedOnce: after a timeout of a source, the waiting client does
// not cause another query.
func TestFailureIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	z := zone(".", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Qtype == dns.TypeA {
			asked.Add(1)
		}
		return nil, fmt.Errorf("upstream: %w", context.DeadlineExceeded)
	})
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	z.Normalise = n
	ts := newTestServer(t, Config{}, z)
	if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply %v", r)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestNormaliseAnswersEmpty: the client gets an empty answer instead of SERVFAIL
// for one type if the name has an address of the other type.
func TestNormaliseAnswersEmpty(t *testing.T) {
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {data, fail}, "y.example.com.": {fail, fail}, "x.example.org.": {data, fail}}}
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	for name, want := range map[string]int{
		"x.example.com.": dns.RcodeSuccess,
		"y.example.com.": dns.RcodeServerFailure, // no address of the other type
		"x.example.org.": dns.RcodeServerFailure, // out of scope
	} {
		ts.ask(t, "udp", query(name, dns.TypeA))
		for _, round := range []string{"asked", "cached failure"} {
			r := ts.ask(t, "udp", query(name, dns.TypeAAAA))
			if r.Rcode != want || len(r.Answer)+len(r.Ns) > 0 {
				t.Errorf("%s, %s: %v", name, round, r)
			}
		}
	}
}

// TestNormaliseProofAndStaleData: a proof that the name does not exist does not
// count while stale data for it is served.
func TestNormaliseProofAndStaleData(t *testing.T) {
	now := &fakeClock{t: time.Now()}
	src := &scripted{t: t, asked: make(map[string]int), zones: map[string][2]kind{"x.example.com.": {data, nsecNX}}}
	z := zone(".", cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour}, StaleFor: time.Hour,
	}), src.exchange)
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	z.Normalise = n
	ts := newTestServer(t, Config{Now: now.Now}, z)
	ts.ask(t, "udp", query("x.example.com.", dns.TypeA))
	now.advance(2 * time.Minute)
	if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeAAAA)); r.Rcode != dns.RcodeSuccess {
		t.Errorf("AAAA beside a stale A: %s", dns.RcodeToString[r.Rcode])
	}
}

// TestNormaliseStaleDenial: an expired denial of one type proves nothing about the
// name, a fresh one does.
func TestNormaliseStaleDenial(t *testing.T) {
	now := &fakeClock{t: time.Now()}
	src := &scripted{t: t, asked: make(map[string]int), zones: map[string][2]kind{"x.example.com.": {nodataSOA, nodataSOA}}}
	z := zone(".", cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Denial: cache.Class{Entries: 100, MaxTTL: time.Hour}, StaleFor: time.Hour,
	}), src.exchange)
	n, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.com."}, Repair: true, Timeout: 20 * time.Second, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	z.Normalise = n
	ts := newTestServer(t, Config{Now: now.Now}, z)
	for _, round := range []struct {
		aaaa kind
		want int
	}{{nodataSOA, dns.RcodeNameError}, {fail, dns.RcodeSuccess}} {
		src.mu.Lock()
		src.zones["x.example.com."] = [2]kind{nodataSOA, round.aaaa}
		src.mu.Unlock()
		if r := ts.ask(t, "udp", query("x.example.com.", dns.TypeA)); r.Rcode != round.want || len(r.Answer) > 0 {
			t.Errorf("AAAA is %s: %v", round.aaaa, r)
		}
		now.advance(2 * time.Minute)
	}
}

// TestNormaliseProperty queries random zones in random order, concurrently, while
// answers expire. It checks the invariant: never NXDOMAIN for one address type while
// the other has data, fresh or stale. For names out of scope, DO, CD and other
// types, clients get upstream's answer.
func TestNormaliseProperty(t *testing.T) {
	// An empty non-terminal and a name with MX only are nodataSOA, a wildcard
	// is data.
	kinds := []kind{data, data, nodata, nodataSOA, nx, nxBare, alias, aliasNX, fail, late, referral, nsec, nodataAD}
	rng := rand.New(rand.NewPCG(1, 2))
	src := &scripted{t: t, zones: make(map[string][2]kind), asked: make(map[string]int)}
	var names []string
	for i := range 300 {
		suffix := []string{"example.com.", "deep.er.example.com.", "corp.", "cluster.local.", "stub.example.com."}[rng.IntN(5)]
		name := fmt.Sprintf("n%d.%s", i, suffix)
		names = append(names, name)
		src.zones[name] = [2]kind{kinds[rng.IntN(len(kinds))], kinds[rng.IntN(len(kinds))]}
	}
	now := &fakeClock{t: time.Now()}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour}, ServFail: 5 * time.Second, StaleFor: time.Hour,
	})
	n, err := NewNormalise(NormaliseConfig{
		Suffixes: []string{"example.com.", "corp."}, Except: []string{"stub.example.com."},
		Repair: true, Timeout: lateAfter, TTL: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	z := zone(".", c, src.exchange)
	z.Normalise = n
	ts := newTestServer(t, Config{Now: now.Now, Timeout: 20 * time.Second}, z)
	var wg sync.WaitGroup
	for worker := range 8 {
		rng := rand.New(rand.NewPCG(uint64(worker), 3))
		wg.Go(func() {
			for i := range 400 {
				if i%40 == 0 {
					now.advance(time.Duration(rng.IntN(30)) * time.Second)
				}
				name := names[rng.IntN(len(names))]
				qtype := []uint16{dns.TypeA, dns.TypeAAAA}[rng.IntN(2)]
				checkInvariant(t, ts, src, name, qtype, rng.IntN(8))
			}
		})
	}
	wg.Wait()
}

func checkInvariant(t *testing.T, ts *testServer, src *scripted, name string, qtype uint16, how int) {
	opts := []func(*dns.Msg){}
	switch how {
	case 0:
		opts = append(opts, withEDNS(1232, true))
	case 1:
		opts = append(opts, func(m *dns.Msg) { m.CheckingDisabled = true })
	case 2:
		if r := ts.ask(t, "udp", query(name, dns.TypeMX)); r.Rcode != dns.RcodeSuccess {
			t.Errorf("%s MX: %s", name, dns.RcodeToString[r.Rcode])
		}
	}
	r := ts.ask(t, "udp", query(name, qtype, opts...))
	own, other := src.zones[name][boolIndex(qtype == dns.TypeAAAA)], src.zones[name][boolIndex(qtype == dns.TypeA)]
	untouched := how <= 1 || strings.HasSuffix(name, ".cluster.local.") || strings.HasSuffix(name, ".stub.example.com.")
	upstream := map[kind]int{
		nx: dns.RcodeNameError, nxBare: dns.RcodeNameError, aliasNX: dns.RcodeNameError,
		fail: dns.RcodeServerFailure, late: dns.RcodeServerFailure,
	}[own]
	switch {
	case untouched && r.Rcode != upstream:
		t.Errorf("%s %s %s/%s: %s, want upstream's rcode", name, dns.Type(qtype), own, other, dns.RcodeToString[r.Rcode])
	case !untouched && r.Rcode == dns.RcodeNameError && own != aliasNX && (own == data || other == data || other == alias || other == aliasNX):
		t.Errorf("%s %s %s/%s: NXDOMAIN", name, dns.Type(qtype), own, other)
	case own == data && len(r.Answer) != 1:
		t.Errorf("%s %s: %v", name, dns.Type(qtype), r)
	}
}

// TestNormaliseHitDoesNotAllocate has judged hits and one out of scope.
func TestNormaliseHitDoesNotAllocate(t *testing.T) {
	src := &scripted{zones: map[string][2]kind{"x.example.com.": {nodata, nodata}, "y.example.com.": {nodata, data}, "z.example.org.": {nodata, data}}}
	ts := normaliseServer(t, NormaliseConfig{Repair: true}, src)
	ts.mu.Lock()
	l := ts.listeners[ts.addr]
	ts.mu.Unlock()
	for name := range src.zones {
		ts.ask(t, "udp", query(name, dns.TypeA))
		msg := pack(t, query(name, dns.TypeA))
		binary.BigEndian.PutUint16(msg, 1)
		q := Query{memory: new(lookupMemory)}
		out := make([]byte, 0, 2048)
		if n := testing.AllocsPerRun(200, func() {
			q.start = ts.clock()
			if _, ok := ts.tryHit(out, l, 0, &q, q.parse(msg)); !ok {
				t.Fatal("miss")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
