package cache

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// clock is a manual clock.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// fixture is a Cache with its own clock.
type fixture struct {
	*Cache
	store *Store
	clock *clock
}

func newFixture(t *testing.T, p Policy) *fixture {
	t.Helper()
	clk := newClock()
	s := New(Options{Shards: 1, Now: clk.Now})
	return &fixture{Cache: s.Cache("zone", p), store: s, clock: clk}
}

func (f *fixture) get(key []byte) Hit { return f.Get(key, f.clock.now) }

func (f *fixture) put(t *testing.T, key []byte, m *dns.Msg) *Entry {
	t.Helper()
	e, err := f.Put(key, m)
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	return e
}

func (f *fixture) putFailure(t *testing.T, key []byte, m *dns.Msg) *Entry {
	t.Helper()
	e, err := f.PutFailure(key, m)
	if err != nil {
		t.Fatalf("PutFailure: %v", err)
	}
	return e
}

func wireName(name string) []byte {
	var buf [256]byte
	n, err := dns.PackDomainName(strings.ToLower(name), buf[:], 0, nil, false)
	if err != nil {
		panic(err)
	}
	return buf[:n]
}

func keyFor(name string, qtype uint16) []byte {
	return AppendKey(nil, wireName(name), qtype, dns.ClassINET, false, false, false)
}

// keyOf returns the key of m's question.
func keyOf(m *dns.Msg) []byte {
	q := m.Question[0]
	return AppendKey(nil, wireName(q.Name), q.Qtype, q.Qclass, false, false, false)
}

func parseRRs(t testing.TB, texts []string) []dns.RR {
	t.Helper()
	var rrs []dns.RR
	for _, text := range texts {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatalf("record %q: %v", text, err)
		}
		rrs = append(rrs, rr)
	}
	return rrs
}

// reply builds a response to name/qtype.
func reply(t testing.TB, name string, qtype uint16, rcode int, answer, authority, additional []string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Response, m.Rcode = true, rcode
	m.Answer, m.Ns, m.Extra = parseRRs(t, answer), parseRRs(t, authority), parseRRs(t, additional)
	return m
}

func success(t testing.TB, answer ...string) *dns.Msg {
	t.Helper()
	rrs := parseRRs(t, answer)
	m := reply(t, rrs[0].Header().Name, rrs[len(rrs)-1].Header().Rrtype, dns.RcodeSuccess, answer, nil, nil)
	return m
}

func nxdomain(t testing.TB, name string, authority ...string) *dns.Msg {
	t.Helper()
	return reply(t, name, dns.TypeA, dns.RcodeNameError, nil, authority, nil)
}

func servfail(name string) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.Response, m.Rcode = true, dns.RcodeServerFailure
	return m
}

// same reports whether a and b are copies of one entry, or both nil.
func same(a, b *Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.buf, b.buf) && a.ttl == b.ttl && a.rcode == b.rcode && a.kind == b.kind && a.flags == b.flags
}

// unpackAged returns the message that a client gets for a hit.
func unpackAged(t testing.TB, e *Entry, age uint32) *dns.Msg {
	t.Helper()
	msg := append([]byte(nil), e.Msg()...)
	e.AgeTTLs(msg, age)
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		t.Fatalf("unpack: %v", err)
	}
	return m
}

// ttlsOf returns the TTLs of all sections in wire order.
func ttlsOf(m *dns.Msg) []uint32 {
	var ttls []uint32
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			ttls = append(ttls, rr.Header().Ttl)
		}
	}
	return ttls
}

func TestGetAndPut(t *testing.T) {
	f := newFixture(t, Policy{})
	m := success(t, "www.example. 60 IN A 192.0.2.1")
	if h := f.get(keyOf(m)); h.State != Miss || h.Entry != nil {
		t.Fatalf("before Put: %+v", h)
	}
	e := f.put(t, keyOf(m), m)
	f.clock.advance(10500 * time.Millisecond)
	h := f.get(keyOf(m))
	if h.State != Fresh || !same(h.Entry, e) || h.Age != 10 {
		t.Fatalf("after Put: %+v", h)
	}
	if got := unpackAged(t, h.Entry, h.Age); got.Answer[0].Header().Ttl != 50 {
		t.Errorf("answer = %v", got)
	}
	f.clock.advance(49500 * time.Millisecond)
	if h := f.get(keyOf(m)); h.State != Miss {
		t.Errorf("at expiry: %+v", h)
	}
	if n := f.store.Stats().Entries; n != 0 {
		t.Errorf("%d entries left after expiry", n)
	}
}
