package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const (
	soa60of300 = "example. 300 IN SOA ns.example. root.example. 1 2 3 4 60"
	soa300of60 = "example. 60 IN SOA ns.example. root.example. 1 2 3 4 300"
)

// coreDNS returns the default bounds of CoreDNS.
func coreDNS() Policy {
	return Policy{
		Success: Class{MinTTL: 5 * time.Second, MaxTTL: time.Hour},
		Denial:  Class{MinTTL: 5 * time.Second, MaxTTL: 30 * time.Minute},
	}
}

func withMinTTL(p Policy) Policy {
	p.Success.MinTTLSet, p.Denial.MinTTLSet = true, true
	return p
}

func TestTTL(t *testing.T) {
	a := func(ttls ...uint32) *dns.Msg {
		var rrs []string
		for i, ttl := range ttls {
			rrs = append(rrs, fmt.Sprintf("www.example. %d IN A 192.0.2.%d", ttl, i))
		}
		return success(t, rrs...)
	}
	answer := func(qtype uint16, answer, authority, additional []string) *dns.Msg {
		return reply(t, "www.example.", qtype, dns.RcodeSuccess, answer, authority, additional)
	}
	ns := []string{"example. 3 IN NS ns.example."}
	cname := []string{"www.example. 20 IN CNAME web.example."}
	chain := append(cname, "web.example. 40 IN A 192.0.2.1")

	tests := []struct {
		name   string
		policy Policy
		msg    *dns.Msg
		kind   Kind
		life   int // seconds; 0: not stored
		ttls   []uint32
	}{
		{"plain", Policy{}, a(60), Success, 60, []uint32{60}},
		{"raised to MinTTL", coreDNS(), a(1), Success, 5, []uint32{5}},
		{"lowered to MaxTTL", coreDNS(), a(86400), Success, 3600, []uint32{3600}},
		{"MaxTTL wins over MinTTL", Policy{Success: Class{MinTTL: 9 * time.Second, MaxTTL: 7 * time.Second}}, a(8), Success, 7, []uint32{7}},
		{"MaxTTL below a second", Policy{Success: Class{MaxTTL: time.Millisecond}}, a(8), Success, 1, []uint32{1}},
		{"zero", coreDNS(), a(0), Success, 0, []uint32{0}},
		{"zero with MinTTL set", withMinTTL(coreDNS()), a(0), Success, 5, []uint32{5}},
		{"zero with MinTTL set to 0", withMinTTL(Policy{}), a(0), Success, 0, []uint32{0}},
		{"2^31-1", Policy{}, a(1<<31 - 1), Success, 1<<31 - 1, []uint32{1<<31 - 1}},
		{"2^31 counts as zero", coreDNS(), a(1 << 31), Success, 0, []uint32{0}},
		{"2^32-1 counts as zero", coreDNS(), a(1<<32 - 1), Success, 0, []uint32{0}},
		{"RRset takes its smallest TTL", Policy{}, a(60, 30, 90), Success, 30, []uint32{30, 30, 30}},
		{"one zero in an RRset", coreDNS(), a(60, 0), Success, 0, []uint32{0, 0}},
		{"chain keeps the TTL of each RRset", Policy{}, answer(dns.TypeA, chain, nil, nil), Success, 20, []uint32{20, 40}},
		{"chain of two owner names in different case", Policy{},
			answer(dns.TypeA, []string{"www.example. 9 IN A 192.0.2.1", "WWW.example. 8 IN A 192.0.2.2"}, nil, nil), Success, 8, []uint32{8, 8}},
		{"signatures are RRsets by covered type", Policy{}, answer(dns.TypeRRSIG, []string{
			"www.example. 50 IN RRSIG A 8 2 300 20300101000000 20200101000000 1 example. AAAA",
			"www.example. 70 IN RRSIG AAAA 8 2 300 20300101000000 20200101000000 1 example. AAAA"}, nil, nil), Success, 50, []uint32{50, 70}},
		{"authority does not shorten the answer", Policy{}, answer(dns.TypeA, []string{"www.example. 60 IN A 192.0.2.1"}, ns,
			[]string{"ns.example. 0 IN A 192.0.2.53"}), Success, 60, []uint32{60, 3, 0}},
		{"every section is clamped", coreDNS(), answer(dns.TypeA, []string{"www.example. 60 IN A 192.0.2.1"}, ns,
			[]string{"ns.example. 0 IN A 192.0.2.53", "ns.example. 86400 IN AAAA 2001:db8::1"}), Success, 60, []uint32{60, 5, 0, 3600}},
		{"CNAME query", Policy{}, answer(dns.TypeCNAME, cname, nil, nil), Success, 20, []uint32{20}},

		{"NXDOMAIN: MINIMUM below TTL", Policy{}, nxdomain(t, "no.example.", soa60of300), Denial, 60, []uint32{60}},
		{"NXDOMAIN: TTL below MINIMUM", Policy{}, nxdomain(t, "no.example.", soa300of60), Denial, 60, []uint32{60}},
		{"NXDOMAIN: MaxTTL of denials", Policy{Denial: Class{MaxTTL: 30 * time.Second}}, nxdomain(t, "no.example.", soa60of300), Denial, 30, []uint32{30}},
		{"NXDOMAIN: bounds of success do not apply", Policy{Success: Class{MaxTTL: 30 * time.Second}}, nxdomain(t, "no.example.", soa60of300), Denial, 60, []uint32{60}},
		{"NXDOMAIN: raised to MinTTL", coreDNS(), nxdomain(t, "no.example.", "example. 300 IN SOA ns. root. 1 2 3 4 1"), Denial, 5, []uint32{5}},
		{"NXDOMAIN: MINIMUM zero", coreDNS(), nxdomain(t, "no.example.", "example. 300 IN SOA ns. root. 1 2 3 4 0"), Denial, 0, []uint32{300}},
		{"NXDOMAIN: MINIMUM zero, MinTTL set", withMinTTL(coreDNS()), nxdomain(t, "no.example.", "example. 300 IN SOA ns. root. 1 2 3 4 0"), Denial, 5, []uint32{5}},
		{"NXDOMAIN: MINIMUM 2^31", coreDNS(), nxdomain(t, "no.example.", "example. 300 IN SOA ns. root. 1 2 3 4 2147483648"), Denial, 0, []uint32{300}},
		{"NXDOMAIN without SOA", coreDNS(), nxdomain(t, "no.example."), Denial, 5, nil},
		{"NXDOMAIN without SOA, long MinTTL", Policy{Denial: Class{MinTTL: time.Minute, MinTTLSet: true}}, nxdomain(t, "no.example."), Denial, 5, nil},
		{"NXDOMAIN without SOA, short MaxTTL", Policy{Denial: Class{MaxTTL: 2 * time.Second}}, nxdomain(t, "no.example."), Denial, 2, nil},
		{"NXDOMAIN: proofs do not outlive it", Policy{}, nxdomain(t, "no.example.", soa60of300, "a.example. 3600 IN NSEC z.example. A"), Denial, 60, []uint32{60, 60}},
		{"NXDOMAIN at the end of a chain", Policy{}, reply(t, "www.example.", dns.TypeA, dns.RcodeNameError, cname, []string{soa60of300}, nil), Denial, 20, []uint32{20, 20}},
		{"NODATA", Policy{}, answer(dns.TypeAAAA, nil, []string{soa60of300}, nil), Denial, 60, []uint32{60}},
		{"NODATA with NS and SOA", Policy{}, answer(dns.TypeAAAA, nil, append(slices.Clone(ns), soa60of300), nil), Denial, 60, []uint32{3, 60}},
		{"NODATA without SOA", Policy{}, answer(dns.TypeAAAA, nil, nil, nil), Denial, 5, nil},
		{"NODATA at the end of a chain", Policy{}, answer(dns.TypeAAAA, cname, []string{soa60of300}, nil), Denial, 20, []uint32{20, 20}},
		{"incomplete chain", Policy{}, answer(dns.TypeAAAA, cname, nil, nil), Success, 0, []uint32{20}},
		{"referral", Policy{}, answer(dns.TypeA, nil, ns, []string{"ns.example. 60 IN A 192.0.2.53"}), Success, 0, []uint32{3, 60}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, tt.policy)
			before := tt.msg.String()
			e := f.put(t, keyOf(tt.msg), tt.msg)
			if tt.msg.String() != before {
				t.Errorf("Put changed the message:\n%s", tt.msg)
			}
			if e.Kind() != tt.kind || e.TTL() != time.Duration(tt.life)*time.Second {
				t.Errorf("got %v for %v, want %v for %d s", e.Kind(), e.TTL(), tt.kind, tt.life)
			}
			if got := ttlsOf(unpackAged(t, e, 0)); !slices.Equal(got, tt.ttls) {
				t.Errorf("TTLs = %d, want %d", got, tt.ttls)
			}
			checkLife(t, f, keyOf(tt.msg), tt.life)
		})
	}
}

// checkLife asserts that key expires after exactly life seconds.
func checkLife(t *testing.T, f *fixture, key []byte, life int) {
	t.Helper()
	if life == 0 {
		if h := f.get(key); h.State != Miss {
			t.Errorf("stored: %+v", h)
		}
		return
	}
	f.clock.advance(time.Duration(life)*time.Second - 1)
	if h := f.get(key); h.State != Fresh || h.Age != uint32(life-1) {
		t.Errorf("just before expiry: %+v", h)
	}
	f.clock.advance(1)
	if h := f.get(key); h.State != Miss {
		t.Errorf("at expiry: %+v", h)
	}
}

func TestCountdown(t *testing.T) {
	m := reply(t, "www.example.", dns.TypeA, dns.RcodeSuccess,
		[]string{"www.example. 60 IN A 192.0.2.1"}, []string{"example. 10 IN NS ns.example."}, nil)
	denied := nxdomain(t, "no.example.", soa60of300)
	tests := []struct {
		name string
		keep bool
		msg  *dns.Msg
		age  time.Duration
		ttls []uint32
	}{
		{"start", false, m, 0, []uint32{60, 10}},
		{"first second", false, m, time.Second - 1, []uint32{60, 10}},
		{"second second", false, m, time.Second, []uint32{59, 9}},
		{"expired authority record", false, m, 59 * time.Second, []uint32{1, 0}},
		{"denial", false, denied, 59 * time.Second, []uint32{1}},
		{"keepttl", true, m, 59 * time.Second, []uint32{60, 10}},
		{"query received before the answer", false, m, -5 * time.Second, []uint32{60, 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, Policy{KeepTTL: tt.keep})
			f.put(t, keyOf(tt.msg), tt.msg)
			f.clock.advance(tt.age)
			h := f.get(keyOf(tt.msg))
			if h.State != Fresh {
				t.Fatalf("got %+v", h)
			}
			if got := ttlsOf(unpackAged(t, h.Entry, h.Age)); !slices.Equal(got, tt.ttls) {
				t.Errorf("TTLs = %d, want %d", got, tt.ttls)
			}
		})
	}
}

// A Time without a monotonic reading would compare by the wall clock.
func TestMonotonicStart(t *testing.T) {
	if s := New(Options{}); !strings.Contains(s.start.String(), " m=") {
		t.Errorf("start = %v has lost its monotonic reading", s.start)
	}
}

func TestUncacheable(t *testing.T) {
	good := func() *dns.Msg { return success(t, "www.example. 60 IN A 192.0.2.1") }
	// denyFor makes m a denial that is uncacheable only because of its question.
	denyFor := func(m *dns.Msg, qtype, qclass uint16) {
		m.Question[0].Qtype, m.Question[0].Qclass = qtype, qclass
		m.Answer, m.Ns = nil, parseRRs(t, []string{soa60of300})
	}
	tests := []struct {
		name   string
		change func(*dns.Msg)
	}{
		{"truncated", func(m *dns.Msg) { m.Truncated = true }},
		{"not a response", func(m *dns.Msg) { m.Response = false }},
		{"opcode", func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }},
		{"no question", func(m *dns.Msg) { m.Question = nil }},
		{"two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
		{"SERVFAIL", func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }},
		{"REFUSED", func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }},
		{"FORMERR", func(m *dns.Msg) { m.Rcode = dns.RcodeFormatError }},
		{"BADVERS", func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers }},
		{"NXDOMAIN with a high bit", func(m *dns.Msg) { m.Rcode = 0x13 }},
		{"ANY", func(m *dns.Msg) { denyFor(m, dns.TypeANY, dns.ClassINET) }},
		{"AXFR", func(m *dns.Msg) { denyFor(m, dns.TypeAXFR, dns.ClassINET) }},
		{"IXFR", func(m *dns.Msg) { denyFor(m, dns.TypeIXFR, dns.ClassINET) }},
		{"NXNAME", func(m *dns.Msg) { denyFor(m, 128, dns.ClassINET) }},
		{"OPT query", func(m *dns.Msg) { denyFor(m, dns.TypeOPT, dns.ClassINET) }},
		{"type 0", func(m *dns.Msg) { denyFor(m, 0, dns.ClassINET) }},
		{"class ANY", func(m *dns.Msg) { denyFor(m, dns.TypeA, dns.ClassANY) }},
		{"class NONE", func(m *dns.Msg) { denyFor(m, dns.TypeA, dns.ClassNONE) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, coreDNS())
			m := good()
			f.put(t, keyOf(m), m)
			kept := f.get(keyOf(m)).Entry

			key := keyOf(m)
			tt.change(m)
			if len(m.Question) == 1 {
				key = keyOf(m)
			}
			e := f.put(t, key, m)
			if e == nil || e.TTL() != 0 {
				t.Errorf("stored as %v for %v", e.Kind(), e.TTL())
			}
			if e.Rcode() != m.Rcode {
				t.Errorf("rcode = %d, want %d", e.Rcode(), m.Rcode)
			}
			if h := f.get(keyOf(good())); !same(h.Entry, kept) {
				t.Errorf("the earlier answer changed: %+v", h)
			}
			if n := f.store.Stats().Entries; n != 1 {
				t.Errorf("%d entries, want 1", n)
			}
		})
	}
}

func TestOtherClassesAndTypesAreCached(t *testing.T) {
	tests := []*dns.Msg{
		success(t, `version.bind. 60 CH TXT "1"`),
		success(t, `www.example. 60 IN CAA 0 issue "ca.example"`), // type 257
		success(t, `www.example. 60 IN TYPE65280 \# 1 00`),
		success(t, `. 60 IN NS a.root-servers.net.`),
	}
	for _, m := range tests {
		m.Question[0].Qclass = m.Answer[0].Header().Class
		t.Run(m.Question[0].String(), func(t *testing.T) {
			f := newFixture(t, Policy{})
			f.put(t, keyOf(m), m)
			if h := f.get(keyOf(m)); h.State != Fresh {
				t.Errorf("got %+v", h)
			}
		})
	}
}
