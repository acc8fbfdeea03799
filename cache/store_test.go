package cache

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// numbered returns an answer for a name as long as a typical Service name.
func numbered(i int) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(fmt.Sprintf("host-%06d.default.svc.cluster.local.", i), dns.TypeA)
	m.Response = true
	hdr := dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}
	m.Answer = []dns.RR{&dns.A{Hdr: hdr, A: net.IPv4(10, 0, byte(i>>8), byte(i))}}
	return m
}

func TestReload(t *testing.T) {
	clk := newClock()
	s := New(Options{Now: clk.Now})
	before := s.Cache("zone", Policy{})
	other := s.Cache("other", Policy{})
	m := numbered(1)
	if _, err := before.Put(keyOf(m), m); err != nil {
		t.Fatal(err)
	}
	after := s.Cache("zone", Policy{KeepTTL: true, StaleFor: time.Hour})
	clk.advance(10 * time.Second)

	if h := before.Get(keyOf(m), clk.now); h.State != Fresh || h.Age != 10 {
		t.Errorf("old handle: %+v", h)
	}
	if h := after.Get(keyOf(m), clk.now); h.State != Fresh || h.Age != 0 {
		t.Errorf("new handle: %+v", h)
	}
	if h := other.Get(keyOf(m), clk.now); h.State != Miss {
		t.Errorf("another id: %+v", h)
	}
	m2 := numbered(2)
	if _, err := before.Put(keyOf(m2), m2); err != nil {
		t.Fatal(err)
	}
	if h := after.Get(keyOf(m2), clk.now); h.State != Fresh {
		t.Errorf("put by the old handle, found by the new: %+v", h)
	}
	clk.advance(20 * time.Second)
	if h := after.Get(keyOf(m), clk.now); h.State != Stale {
		t.Errorf("new policy: %+v", h)
	}
	// A reload that disables caching stops serving the entries.
	disabled := s.Cache("zone", Policy{Success: Class{Disabled: true}})
	if h := disabled.Get(keyOf(m2), clk.now); h.State != Miss {
		t.Errorf("disabled: %+v", h)
	}
}

func TestRetain(t *testing.T) {
	clk := newClock()
	s := New(Options{Now: clk.Now})
	a, b := s.Cache("a", Policy{ServFail: time.Minute}), s.Cache("b", Policy{})
	for i := range 100 {
		m := numbered(i)
		for _, c := range []*Cache{a, b} {
			if _, err := c.Put(keyOf(m), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	full := s.Stats()
	s.Retain(map[string]bool{"b": true, "unknown": true})
	st := s.Stats()
	if full.Entries != 200 || st.Entries != 100 || st.Bytes > full.Bytes || len(s.spaces) != 1 {
		t.Errorf("before %+v, after %+v", full, st)
	}
	m := numbered(1)
	if h := a.Get(keyOf(m), clk.now); h.State != Miss {
		t.Errorf("dropped id: %+v", h)
	}
	if h := b.Get(keyOf(m), clk.now); h.State != Fresh {
		t.Errorf("retained id: %+v", h)
	}
	if e, err := a.Put(keyOf(m), m); err != nil || e.TTL() != 0 {
		t.Errorf("Put by a retired handle = %v, %v", e, err)
	}
	if _, err := a.PutFailure(keyFor("x.", dns.TypeA), servfail("x.")); err != nil {
		t.Error(err)
	}
	if got := s.Stats(); got != st {
		t.Errorf("a retired handle stored entries: %+v, was %+v", got, st)
	}
	again := s.Cache("a", Policy{})
	if _, err := again.Put(keyOf(m), m); err != nil {
		t.Fatal(err)
	}
	if h := again.Get(keyOf(m), clk.now); h.State != Fresh {
		t.Errorf("opened again: %+v", h)
	}
}

func TestEntryCaps(t *testing.T) {
	for _, shards := range []int{1, 3, 8} {
		for _, limit := range []int{1, 7, 64} {
			s := New(Options{Shards: shards})
			c := s.Cache("zone", Policy{Success: Class{Entries: limit}, Denial: Class{Entries: limit}, ServFail: time.Minute})
			neighbour := s.Cache("other", Policy{})
			for i := range 400 {
				m := numbered(i)
				denied := nxdomain(t, fmt.Sprintf("no-%d.example.", i), soa60of300)
				failed := servfail(fmt.Sprintf("broken-%d.example.", i))
				for _, c := range []*Cache{c, neighbour} {
					mustPut(t, c, m)
					mustPut(t, c, denied)
				}
				if _, err := c.PutFailure(keyOf(failed), failed); err != nil {
					t.Fatal(err)
				}
			}
			perShard := (limit + shards - 1) / shards
			st := c.Stats()
			for kind, k := range map[Kind]KindStats{Success: st.Success, Denial: st.Denial, Failure: st.Failure} {
				if k.Entries != perShard*shards || k.Entries >= limit+shards {
					t.Errorf("%d shards, cap %d: %d of kind %v", shards, limit, k.Entries, kind)
				}
				if k.Evicted.Cap != uint64(400-k.Entries) || k.Evicted.Budget != 0 {
					t.Errorf("%v evicted: %+v", kind, k.Evicted)
				}
			}
			if n := neighbour.Stats(); n.Success.Entries != 400 || n.Denial.Entries != 400 {
				t.Errorf("a cap reaches another id: %+v", n)
			}
		}
	}
}

func mustPut(t testing.TB, c *Cache, m *dns.Msg) *Entry {
	t.Helper()
	e, err := c.Put(keyOf(m), m)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The oldest entry without a lookup is evicted first, whatever its id and kind. An
// entry with a lookup stays.
func TestEvictionOrder(t *testing.T) {
	clk := newClock()
	s := New(Options{Shards: 1, Bytes: minSlots*slotBytes + 12*blockBytes, Now: clk.Now}) // four entries
	a, b := s.Cache("a", Policy{}), s.Cache("b", Policy{})
	put := func(c *Cache, i int) { mustPut(t, c, numbered(i)) }
	has := func(c *Cache, i int) bool {
		c.store.shards[0].mu.Lock()
		defer c.store.shards[0].mu.Unlock()
		hash, set := c.locate(keyOf(numbered(i)))
		return set.find(Success, hash, keyOf(numbered(i))) != 0
	}
	put(a, 1)
	put(b, 2)
	put(a, 3)
	put(b, 4)
	if a.Get(keyOf(numbered(1)), clk.now).State != Fresh {
		t.Fatal("1 was evicted before the budget was full")
	}
	put(a, 5)
	if has(b, 2) || !has(a, 5) || !has(a, 1) || !has(a, 3) || !has(b, 4) {
		t.Error("want 2 evicted, and nothing else")
	}
	put(b, 2) // evicted recently: it enters the main queue
	if has(a, 3) || !has(b, 2) || !has(a, 1) || !has(b, 4) || !has(a, 5) {
		t.Error("want 3 evicted, and nothing else")
	}
	for i := 7; i < 13; i++ {
		put(a, i)
	}
	if !has(b, 2) || !has(a, 1) {
		t.Error("names with a single lookup evicted one with two")
	}
	if sa, sb := a.Stats().Success.Evicted, b.Stats().Success.Evicted; sa.Cap+sb.Cap != 0 || sa.Budget+sb.Budget != 8 {
		t.Errorf("evicted %+v, %+v", sa, sb)
	}
}

func TestBudget(t *testing.T) {
	const budget = 256 << 10
	for _, shards := range []int{1, 4} {
		s := New(Options{Bytes: budget, Shards: shards})
		a, b := s.Cache("a", Policy{ServFail: time.Minute}), s.Cache("b", Policy{})
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range 5000 {
			m := numbered(rnd.IntN(3000))
			for range rnd.IntN(20) {
				m.Answer = append(m.Answer, m.Answer[0])
			}
			switch i % 4 {
			case 0:
				mustPut(t, b, m)
			case 1:
				mustPut(t, a, nxdomain(t, m.Question[0].Name, soa60of300))
			case 2:
				if _, err := a.PutFailure(keyOf(m), servfail(m.Question[0].Name)); err != nil {
					t.Fatal(err)
				}
			default:
				mustPut(t, a, m)
			}
			if st := s.Stats(); st.Bytes > budget {
				t.Fatalf("%d bytes after %d puts", st.Bytes, i)
			}
		}
		checkAccounts(t, s)
		if st := s.Stats(); st.Bytes < budget*9/10 {
			t.Errorf("only %d of %d bytes used", st.Bytes, budget)
		}
		s.Retain(nil)
		if st := s.Stats(); st.Bytes != 0 || st.Entries != 0 {
			t.Errorf("after dropping all: %+v", st)
		}
	}
}

// checkAccounts recounts the totals of the shards and compares the queues with the
// index.
func checkAccounts(t *testing.T, s *Store) {
	t.Helper()
	for _, sh := range s.shards {
		sh.mu.Lock()
		var blocks, small uint32
		entries := 0
		for number, set := range sh.sets {
			if set == nil {
				continue
			}
			for k := range set.bins {
				b := &set.bins[k]
				var ofBin uint32
				for _, main := range []bool{false, true} {
					q, n := b.queue(main), 0
					for id, prev := q.oldest, uint32(0); id != 0; id, prev = sh.slab.slot(id).next, id {
						sl := sh.slab.slot(id)
						size := blocksFor(int(sl.msgLen) + 2*int(sl.records))
						if sl.prev != prev || sl.inMain() != main || sl.kind() != Kind(k) || int(sl.set) != number || chainLen(sh, id) != size {
							t.Fatalf("block %d of an entry of %d blocks is in the wrong place: %+v", id, size, sl)
						}
						sh.index.position(sl.hash, id) // does not return if the entry is missing
						ofBin += size
						n++
						if !main {
							small += size
						}
					}
					if n != q.n {
						t.Errorf("%d entries in a queue of %d", n, q.n)
					}
					entries += n
				}
				if ofBin != b.blocks {
					t.Errorf("a bin of %d blocks holds %d", b.blocks, ofBin)
				}
				blocks += ofBin
			}
		}
		free := 0
		for id := sh.slab.free; id != 0; id = sh.slab.block(id).more {
			free++
		}
		if blocks != sh.slab.used || int(blocks)+free != int(sh.slab.top)-1 || small != sh.small || entries != sh.index.n {
			t.Errorf("found %d entries of %d blocks, %d in small queues, %d free; accounted %d, %d, %d; %d blocks ever used",
				entries, blocks, small, free, sh.index.n, sh.slab.used, sh.small, sh.slab.top-1)
		}
		sh.mu.Unlock()
	}
}

func chainLen(sh *shard, id uint32) uint32 {
	n := uint32(1)
	for next := sh.slab.slot(id).more; next != 0; next = sh.slab.block(next).more {
		n++
	}
	return n
}

// SetBudget applies a smaller budget at once and returns memory to the host. The
// remaining entries are found and complete. A larger budget is used again, up to
// the first one.
func TestSetBudget(t *testing.T) {
	const budget = 6 << 20
	for _, shards := range []int{1, 4} {
		clk := newClock() // never advances: nothing expires on a slow machine
		s := New(Options{Bytes: budget, Shards: shards, Now: clk.Now})
		a, b := s.Cache("a", Policy{}), s.Cache("b", Policy{})
		rnd := rand.New(rand.NewPCG(1, 2))
		msgs := make([]*dns.Msg, 8000)
		fill := func() {
			for i := range msgs {
				msgs[i] = numbered(i)
				for range rnd.IntN(8) {
					msgs[i].Answer = append(msgs[i].Answer, msgs[i].Answer[0])
				}
				mustPut(t, []*Cache{a, b}[i%2], msgs[i])
			}
		}
		fill()
		for _, now := range []int64{5 << 20, 1 << 20, 64 << 10, 1000, 2 << 20, 100 << 20} {
			s.SetBudget(now)
			st, want := s.Stats(), min(now, budget)
			real := mapped(t, s)
			if st.Budget != want || st.Bytes > want || real > want+int64(shards)*4096*2 {
				t.Errorf("budget %d: %+v, %d bytes mapped", want, st, real)
			}
			checkAccounts(t, s)
			found := 0
			for i, m := range msgs {
				if h := []*Cache{a, b}[i%2].Get(keyOf(m), clk.now); h.State == Fresh {
					found++
					if got := unpackAged(t, h.Entry, 0); len(got.Answer) != len(m.Answer) || got.Answer[0].String() != m.Answer[0].String() {
						t.Fatalf("%v became %v", m, got)
					}
				}
			}
			if found != st.Entries {
				t.Errorf("budget %d: %d of %d entries found", want, found, st.Entries)
			}
			if now > 1<<20 {
				fill()
				if st := s.Stats(); st.Bytes > want || st.Bytes < want*8/10 && st.Entries < len(msgs) {
					t.Errorf("filled again: %+v", st)
				}
			}
		}
	}
}

func TestTooLargeForAShare(t *testing.T) {
	s := New(Options{Bytes: 4096, Shards: 2})
	c := s.Cache("zone", Policy{})
	small := mustPut(t, c, numbered(0))
	m := numbered(1)
	for range 200 {
		m.Answer = append(m.Answer, m.Answer[0])
	}
	e := mustPut(t, c, m)
	if len(unpackAged(t, e, 0).Answer) != 201 || e.TTL() != 0 {
		t.Error("the entry lacks records, or has a TTL as if it was stored")
	}
	now := time.Now()
	if c.Get(keyOf(m), now).State != Miss || !same(c.Get(keyOf(numbered(0)), now).Entry, small) {
		t.Errorf("stored, or others were evicted: %+v", s.Stats())
	}
}

func TestDefaultShards(t *testing.T) {
	for _, tt := range []struct {
		bytes     int64
		low, high int
	}{{1, 1, 1}, {minShardBytes, 1, 1}, {4 * minShardBytes, 1, 4}, {1 << 40, 1, maxShards}} {
		if n := defaultShards(tt.bytes); n < tt.low || n > tt.high {
			t.Errorf("%d bytes: %d shards", tt.bytes, n)
		}
	}
	c := New(Options{Shards: 7}).Cache("", Policy{})
	seen := make(map[*shard]bool)
	for i := range 1000 {
		_, set := c.locate(keyOf(numbered(i)))
		seen[set.shard] = true
	}
	if len(seen) != 7 {
		t.Errorf("%d of 7 shards used", len(seen))
	}
}

// Two keys with the same hash have separate entries.
func TestHashCollision(t *testing.T) {
	f := newFixture(t, Policy{})
	a, b := f.put(t, keyOf(numbered(1)), numbered(1)), keyOf(numbered(2))
	hash, set := f.locate(b)
	set.shard.mu.Lock()
	set.add(hash, a, 0, 10, inherited{})
	set.shard.mu.Unlock()
	if h := f.get(b); h.State != Miss {
		t.Errorf("answered by another key: %+v", h)
	}
	e := f.put(t, b, numbered(2))
	if h := f.get(b); !same(h.Entry, e) {
		t.Errorf("after Put: %+v", h)
	}
	checkAccounts(t, f.store)
}

// For the race detector. The totals must be right afterwards.
func TestConcurrentUse(t *testing.T) {
	s := New(Options{Bytes: 64 << 10, Shards: 2})
	p := Policy{Success: Class{Entries: 50}, StaleFor: time.Hour, ServFail: time.Second, Prefetch: Prefetch{Amount: 1, Percentage: 100}}
	var msgs [100]*dns.Msg
	for i := range msgs {
		msgs[i] = numbered(i)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			buf := make([]byte, 0, 512)
			for i := range 1000 {
				m := msgs[(i*7+g)%len(msgs)]
				c := s.Cache([]string{"a", "b"}[i%2], p)
				h := c.Get(keyOf(m), time.Now())
				if h.Entry != nil {
					buf = append(buf[:0], h.Entry.Msg()...)
					h.Entry.AgeTTLs(buf, h.Age)
				}
				if h.State == Miss || h.Refresh {
					if _, err := c.Put(keyOf(m), m); err != nil {
						t.Error(err)
					}
				}
				if i%50 == g {
					s.Retain(map[string]bool{"a": true})
				}
				s.Stats()
				c.Stats()
			}
		})
	}
	wg.Wait()
	checkAccounts(t, s)
}
