package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// seeds are packed messages, some of them damaged.
func seeds(f *testing.F) [][]byte {
	msgs := []*dns.Msg{
		large(f), numbered(1), nxdomain(f, "no.example.", soa60of300), servfail("."),
		reply(f, "www.example.", dns.TypeA, 0, []string{"www.example. 5 IN CNAME a.example.", "a.example. 0 IN A 192.0.2.1"},
			[]string{soa300of60}, []string{"www.example. 4294967295 IN TXT a b"}),
	}
	msgs[1].SetEdns0(1232, true)
	var packed [][]byte
	for _, m := range msgs {
		m.Compress = true
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		packed = append(packed, b, b[:len(b)-1], b[:headerLen])
	}
	loop := slices.Clone(packed[0])
	loop[12], loop[13] = 0xc0, 12
	return append(packed, loop, nil, []byte("short"))
}

// FuzzAgeTTLs ages copies of an entry, some of them damaged. Only TTL fields may
// change.
func FuzzAgeTTLs(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, uint32(10), uint16(7))
		f.Add(seed, StaleAge, uint16(400))
	}
	f.Fuzz(func(t *testing.T, packed []byte, age uint32, cut uint16) {
		m := new(dns.Msg)
		if m.Unpack(packed) != nil {
			return
		}
		e, err := NewEntry(m)
		if err != nil {
			return
		}
		msg := slices.Clone(e.Msg())
		e.AgeTTLs(msg, age)
		checkOnlyTTLs(t, e, msg, age)
		e.AgeTTLs(msg[:min(int(cut), len(msg))], age)
		e.AgeTTLs(slices.Clone(packed), age)
		if got := unpackAged(t, e, 0); len(got.Answer) != len(m.Answer) || len(got.Ns) != len(m.Ns) {
			t.Errorf("records were lost: %v, was %v", got, m)
		}
	})
}

// checkOnlyTTLs finds the TTL fields with miekg/dns, independent of our offsets.
func checkOnlyTTLs(t *testing.T, e *Entry, aged []byte, age uint32) {
	t.Helper()
	before, after := unpackAged(t, e, 0), new(dns.Msg)
	if err := after.Unpack(aged); err != nil {
		t.Fatalf("unpack after AgeTTLs(%d): %v", age, err)
	}
	was, is := slices.Concat(before.Answer, before.Ns, before.Extra), slices.Concat(after.Answer, after.Ns, after.Extra)
	if len(was) != len(is) {
		t.Fatalf("%d records became %d", len(was), len(is))
	}
	for i, rr := range was {
		want := rr.Header().Ttl - min(rr.Header().Ttl, age)
		if age == StaleAge {
			want = staleTTL
		}
		if got := is[i].Header().Ttl; got != want {
			t.Errorf("TTL %d at age %d became %d", rr.Header().Ttl, age, got)
		}
		is[i].Header().Ttl = rr.Header().Ttl
	}
	if after.String() != before.String() {
		t.Errorf("more than TTLs changed:\n%v\nwas\n%v", after, before)
	}
}

// FuzzNewEntry packs, stores, looks up and truncates any message.
func FuzzNewEntry(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, uint16(512))
		f.Add(seed, uint16(60))
	}
	f.Fuzz(func(t *testing.T, packed []byte, limit uint16) {
		m := new(dns.Msg)
		if m.Unpack(packed) != nil {
			return
		}
		e, err := NewEntry(m)
		if err != nil {
			return
		}
		msg := e.Truncate(slices.Clone(e.Msg()), int(limit))
		if len(msg) > max(int(limit), questionEnd(e.Msg())) {
			t.Errorf("%d bytes, limit %d", len(msg), limit)
		}
		if err := new(dns.Msg).Unpack(msg); err != nil {
			t.Errorf("unpack after Truncate: %v", err)
		}
		checkPut(t, m, e)
	})
}

// checkPut asserts that a stored answer is found, and not with other key flags.
func checkPut(t *testing.T, m *dns.Msg, uncached *Entry) {
	t.Helper()
	q := questionEnd(uncached.Msg())
	if len(m.Question) != 1 || uncached.Msg()[headerLen] >= 0xc0 {
		return
	}
	c := New(Options{}).Cache("zone", Policy{})
	key := append(slices.Clone(uncached.Msg()[headerLen:q]), keyDO)
	for i := range len(key) - keyTail {
		key[i] = lower(key[i])
	}
	e, err := c.Put(key, m)
	if err != nil {
		t.Fatalf("Put fails although NewEntry succeeded: %v", err)
	}
	h := c.Get(key, time.Now())
	if kept := e.TTL() > 0; kept != (h.State == Fresh) || kept != same(h.Entry, e) {
		t.Errorf("stored for %v, found %+v", e.TTL(), h)
	}
	key[len(key)-1] = 0
	if h := c.Get(key, time.Now()); h.State != Miss {
		t.Errorf("found without DO: %+v", h)
	}
}

// FuzzGet looks up arbitrary keys and stores answers under them.
func FuzzGet(f *testing.F) {
	f.Add(keyFor("www.example.", dns.TypeA))
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte("\x3fshort\x00\x01\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, key []byte) {
		c := New(Options{}).Cache("zone", Policy{ServFail: time.Second, Zones: []string{"example.", "a.b."}})
		m := servfail("www.example.")
		if h := c.Get(key, time.Now()); h.State != Miss {
			t.Errorf("found %+v", h)
		}
		if _, err := c.Put(key, m); err != nil {
			t.Error(err)
		}
		if _, err := c.PutFailure(key, m); err != nil {
			t.Error(err)
		}
	})
}
