package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// fakeKernel holds what was promoted.
type fakeKernel struct {
	held map[string][]byte // message by key
	hits map[string]uint32
	key  []byte // that is being promoted
	life Lifetime
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{held: make(map[string][]byte), hits: make(map[string]uint32)}
}

func (k *fakeKernel) Withdraw(key []byte) { delete(k.held, string(key)) }

func (k *fakeKernel) Hits(key []byte) uint32 {
	n := k.hits[string(key)]
	delete(k.hits, string(key))
	return n
}

func (k *fakeKernel) Copy(e *Entry, l Lifetime) bool {
	k.held[string(k.key)] = bytes.Clone(e.Msg())
	k.life = l
	return true
}

func (k *fakeKernel) promote(c *Cache, key []byte) {
	k.key = key
	c.Promote(key, false, c.store.now(), new(Entry), k)
}

// TestKernelHoldsASubset does random work on a small store. After each step, the
// kernel holds nothing that the cache would not answer in the same way. An entry
// that has expired may stay: the kernel knows its expiry.
func TestKernelHoldsASubset(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	const budget = 64 << 10
	s := New(Options{Now: clk.Now, Kernel: k, Bytes: budget, Shards: 2})
	c := s.Cache("zone", Policy{ServFail: time.Second, Denial: Class{Entries: 20}})
	rnd := rand.New(rand.NewPCG(1, 2))
	most := 0
	for i := range 20_000 {
		m := numbered(rnd.IntN(500))
		switch rnd.IntN(10) {
		case 0:
			m.Answer = nil
			m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "cluster.local.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 30}, Ns: "a.", Mbox: "b.", Minttl: 30}}
		case 1:
			m.Answer = append(m.Answer, dns.Copy(m.Answer[0]))
		case 2:
			m.Answer[0].Header().Ttl = 0
		case 3:
			m.Answer[0].(*dns.A).A[3] = byte(i)
		}
		switch rnd.IntN(40) {
		case 0:
			s.SetBudget(rnd.Int64N(budget))
		case 1:
			s.SetBudget(budget)
		case 2:
			clk.advance(time.Second)
		case 3:
			if rnd.IntN(20) == 0 {
				s.Retain(nil)
				c = s.Cache("zone", Policy{Denial: Class{Entries: 20}})
			}
		}
		if _, err := c.Put(keyOf(m), m); err != nil {
			t.Fatal(err)
		}
		k.promote(c, keyOf(numbered(rnd.IntN(500))))
		if i%10 == 0 {
			most = max(most, len(k.held))
			checkSubset(t, c, k, clk.now)
		}
	}
	if most < 40 {
		t.Errorf("the kernel held %d entries at most", most)
	}
}

// checkSubset compares the kernel's entries with those of the cache.
func checkSubset(t *testing.T, c *Cache, k *fakeKernel, now time.Time) {
	t.Helper()
	for key, msg := range k.held {
		h := c.Get([]byte(key), now)
		if h.State == Fresh && !bytes.Equal(h.Entry.Msg(), msg) {
			t.Fatalf("the kernel holds another answer to %q", key)
		}
		if _, still := k.held[key]; h.State != Fresh && still {
			hash, set := c.locate([]byte(key))
			if set.find(Success, hash, []byte(key)) == 0 {
				t.Fatalf("the kernel holds an answer to %q, which is not in the cache", key)
			}
		}
	}
}

func TestPromotedLifetime(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	s := New(Options{Now: clk.Now, Kernel: k})
	c := s.Cache("zone", Policy{Prefetch: Prefetch{Amount: 5, Percentage: 20}})
	m := numbered(1)
	if _, err := c.Put(keyOf(m), m); err != nil {
		t.Fatal(err)
	}
	clk.advance(10 * time.Second)
	k.promote(c, keyOf(m))
	if want := (Lifetime{Age: 10 * time.Second, Left: 20 * time.Second, Refresh: 14 * time.Second}); k.life != want {
		t.Errorf("%+v, want %+v", k.life, want)
	}
	clk.advance(20 * time.Second)
	k.life = Lifetime{}
	if k.promote(c, keyOf(m)); k.life != (Lifetime{}) {
		t.Error("an expired entry was promoted")
	}
	if k.promote(c, keyOf(numbered(2))); len(k.held) != 1 {
		t.Error("a missing entry was promoted")
	}
}

// TestKernelHitsCount: the lookups that the kernel answers keep an entry from
// eviction, and let prefetching start.
func TestKernelHitsCount(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	s := New(Options{Now: clk.Now, Kernel: k, Bytes: 64 << 10, Shards: 1})
	c := s.Cache("zone", Policy{Prefetch: Prefetch{Amount: 5}})
	put := func(i int) []byte {
		m := numbered(i)
		if _, err := c.Put(keyOf(m), m); err != nil {
			t.Fatal(err)
		}
		return keyOf(m)
	}
	key := put(1)
	k.promote(c, key)
	k.hits[string(key)] = 8
	for i := range 2000 {
		put(10 + i)
		k.hits[string(key)] += 8
	}
	if k.held[string(key)] == nil {
		t.Error("an entry with lookups in the kernel was evicted")
	}
	clk.advance(28 * time.Second)
	if h := c.Get(key, clk.now); h.State != Fresh || !h.Refresh {
		t.Errorf("%v, refresh %t: prefetching ignores the kernel's lookups", h.State, h.Refresh)
	}
}

// TestKernelHitsLeaveNoGap: while the kernel answers, the Cache sees no lookups. The
// entry stays popular nevertheless.
func TestKernelHitsLeaveNoGap(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	c := New(Options{Now: clk.Now, Kernel: k}).Cache("zone", Policy{Prefetch: Prefetch{Amount: 5}})
	m := success(t, "long.cluster.local. 300 IN A 192.0.2.1")
	key := keyOf(m)
	if _, err := c.Put(key, m); err != nil {
		t.Fatal(err)
	}
	k.promote(c, key)
	k.hits[string(key)] = 8
	clk.advance(290 * time.Second)
	if h := c.Get(key, clk.now); h.State != Fresh || !h.Refresh {
		t.Errorf("%v, refresh %t: prefetching ignores the kernel's lookups", h.State, h.Refresh)
	}
}

// TestPromoteOnlyWhatWasSeen: an answer that was stored after the query had been answered
// is not promoted: the server has not judged it.
func TestPromoteOnlyWhatWasSeen(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	c := New(Options{Now: clk.Now, Kernel: k}).Cache("zone", Policy{})
	m := numbered(1)
	seen := clk.now
	clk.advance(time.Millisecond)
	if _, err := c.Put(keyOf(m), m); err != nil {
		t.Fatal(err)
	}
	k.key = keyOf(m)
	if c.Promote(k.key, false, seen, new(Entry), k); len(k.held) != 0 {
		t.Error("a later answer was promoted")
	}
	if c.Promote(k.key, false, clk.now, new(Entry), k); len(k.held) != 1 {
		t.Error("the answer was not promoted")
	}
}

func TestAppendKey(t *testing.T) {
	s := New(Options{Shards: 1})
	c := s.Cache("zone", Policy{})
	for _, n := range []int{1, 40, 55, 60, 63} {
		name := fmt.Sprintf("%0*d.%0*d.%0*d.%0*d.", n, 1, n, 2, n, 3, max(n-2, 1), 4)
		m := success(t, name+" 60 IN A 192.0.2.1")
		key := AppendKey(nil, wireName(name), dns.TypeA, dns.ClassINET, true, false, false)
		if _, err := c.Put(key, m); err != nil {
			t.Fatal(err)
		}
		hash, set := c.locate(key)
		id := set.find(Success, hash, key)
		if got := set.shard.slab.appendKey(nil, set.shard.slab.slot(id)); !bytes.Equal(got, key) {
			t.Errorf("key %q, want %q", got, key)
		}
	}
}

// TestPair: an answer that depends on that of the other address type is withdrawn when
// either changes, and expires with the entry that expires first.
func TestPair(t *testing.T) {
	clk, k := newClock(), newFakeKernel()
	c := New(Options{Now: clk.Now, Kernel: k}).Cache("zone", Policy{})
	put := func(qtype uint16, ttl uint32) []byte {
		t.Helper()
		m := numbered(1)
		m.Question[0].Qtype, m.Answer = qtype, nil
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "cluster.local.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl}, Ns: "a.", Mbox: "b.", Minttl: ttl}}
		if _, err := c.Put(keyOf(m), m); err != nil {
			t.Fatal(err)
		}
		return keyOf(m)
	}
	promote := func() bool {
		c.Promote(k.key, true, c.store.now(), new(Entry), k)
		return len(k.held) == 1
	}
	a := put(dns.TypeA, 30)
	if k.key = a; promote() {
		t.Error("the kernel has the answer without that of the other type")
	}
	put(dns.TypeAAAA, 10)
	clk.advance(time.Second)
	if !promote() || k.life.Left != 9*time.Second || k.life.Age != time.Second {
		t.Errorf("the kernel holds %d answers; %+v", len(k.held), k.life)
	}
	for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeA, dns.TypeAAAA} {
		if put(qtype, 10); len(k.held) != 0 {
			t.Fatalf("the kernel keeps the answer after that of type %d has changed", qtype)
		}
		if !promote() {
			t.Fatal("the kernel does not get the answer again")
		}
	}
	if put(dns.TypeAAAA, 0); len(k.held) != 0 || promote() {
		t.Error("the kernel has the answer although that of the other type is gone")
	}
	put(dns.TypeAAAA, 10)
	seen := c.store.now()
	clk.advance(time.Second)
	put(dns.TypeAAAA, 10)
	if c.Promote(k.key, true, seen, new(Entry), k); len(k.held) != 0 {
		t.Error("the kernel gets an answer after the other one has changed")
	}
	clk.advance(20 * time.Second)
	if promote() {
		t.Error("the kernel gets the answer after the other one has expired")
	}
}
