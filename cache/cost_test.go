package cache

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

func TestHitsDoNotAllocate(t *testing.T) {
	p := Policy{
		Success: Class{Disabled: true, DisabledOnly: []string{"x.example.", "y.example."}},
		Zones:   []string{"other.", "example."}, StaleFor: time.Hour, ServFail: 5 * time.Minute,
		Prefetch: Prefetch{Amount: 1, Percentage: 100},
	}
	f := newFixture(t, p)
	data := success(t, "www.example. 60 IN A 192.0.2.1", "www.example. 60 IN A 192.0.2.2")
	stale := success(t, "stale.example. 1 IN A 192.0.2.1")
	denied := nxdomain(t, "no.example.", soa60of300)
	failed := servfail("broken.example.")
	for _, m := range []*dns.Msg{data, stale, denied} {
		f.put(t, keyOf(m), m)
	}
	f.clock.advance(time.Second)
	f.putFailure(t, keyOf(failed), failed)
	buf, name := make([]byte, 512), wireName("www.example.")
	key := make([]byte, 0, maxNameWire+keyTail)
	var e Entry

	for what, m := range map[string]*dns.Msg{
		"fresh": data, "stale": stale, "denial": denied, "failure": failed, "miss": servfail("none.example."),
	} {
		k := keyOf(m)
		if n := testing.AllocsPerRun(100, func() { f.GetInto(k, f.clock.now, &e) }); n != 0 {
			t.Errorf("Get, %s: %v allocations", what, n)
		}
	}
	k := keyOf(data)
	if n := testing.AllocsPerRun(100, func() {
		h := f.GetInto(k, f.clock.now, &e)
		h.Entry.AgeTTLs(buf[:copy(buf, h.Entry.Msg())], 3)
	}); n != 0 {
		t.Errorf("copy and AgeTTLs: %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { key = AppendKey(key[:0], name, 1, 1, true, false, false) }); n != 0 {
		t.Errorf("AppendKey: %v allocations", n)
	}
}

// The accounted bytes of 100,000 entries are the memory that they really use.
func TestAccountedBytesAreReal(t *testing.T) {
	const n = 100_000
	soa := parseRRs(t, []string{soa60of300})
	tests := []struct {
		name string
		put  func(c *Cache, i int)
	}{
		{"data", func(c *Cache, i int) { mustPut(t, c, numbered(i)) }},
		{"half replaced by denials", func(c *Cache, i int) {
			m := numbered(i)
			mustPut(t, c, m)
			if i%2 == 0 {
				m.Rcode, m.Answer, m.Ns = dns.RcodeNameError, nil, soa
				mustPut(t, c, m)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Options{Bytes: 1 << 30, Shards: 8})
			c := s.Cache("zone", Policy{})
			before := heap()
			for i := range n {
				tt.put(c, i)
			}
			grown := heap() - before + mapped(t, s)
			st := s.Stats()
			t.Logf("%d bytes an entry accounted, %d real", st.Bytes/n, grown/n)
			if st.Entries != n {
				t.Fatalf("%d entries", st.Entries)
			}
			if ratio := float64(grown) / float64(st.Bytes); ratio < 0.95 || ratio > 1.05 {
				t.Errorf("real / accounted = %.3f", ratio)
			}
			runtime.KeepAlive(s)
		})
	}
}

// mapped returns the resident bytes of the store's mappings.
func mapped(t *testing.T, s *Store) int64 {
	t.Helper()
	page := unix.Getpagesize()
	var pages int
	for _, sh := range s.shards {
		vec := make([]byte, (len(sh.slab.mem)+page-1)/page)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&sh.slab.mem[0])), uintptr(len(sh.slab.mem)), uintptr(unsafe.Pointer(&vec[0])))
		if errno != 0 {
			t.Fatal(errno)
		}
		for _, v := range vec {
			pages += int(v & 1)
		}
	}
	return int64(pages * page)
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the second run frees the objects of sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkGet(b *testing.B) {
	const names = 10_000
	s := New(Options{})
	c := s.Cache("zone", Policy{ServFail: 5 * time.Second})
	keys := make([][]byte, names)
	for i := range keys {
		m := numbered(i)
		if i%10 < 7 {
			m = nxdomain(b, m.Question[0].Name, soa60of300)
		}
		keys[i] = keyOf(m)
		mustPut(b, c, m)
	}
	for _, kind := range []struct {
		name  string
		first int
	}{{"denial", 0}, {"success", 7}} {
		b.Run(kind.name, func(b *testing.B) {
			b.ReportAllocs()
			now := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 512)
				var e Entry
				for i := 0; pb.Next(); i++ {
					h := c.GetInto(keys[i*10%names+kind.first], now, &e)
					h.Entry.AgeTTLs(buf[:copy(buf, h.Entry.Msg())], h.Age+1)
				}
			})
		})
	}
}

func BenchmarkPut(b *testing.B) {
	c := New(Options{}).Cache("zone", Policy{})
	m := numbered(1)
	k := keyOf(m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Put(k, m); err != nil {
			b.Fatal(err)
		}
	}
}

// A million names fit into the budget, the accounted bytes match the memory in
// use, and a garbage collection stays cheap.
func TestMillionNames(t *testing.T) {
	const n, budget = 1_000_000, 256 << 20
	s := New(Options{Bytes: budget, Shards: 8})
	c := s.Cache("zone", Policy{})
	before := heap()
	e, err := NewEntry(numbered(0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		putNumbered(c, e, i)
	}
	real := heap() - before + mapped(t, s)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	pause := m.PauseTotalNs
	runtime.GC()
	runtime.ReadMemStats(&m)
	st := s.Stats()
	t.Logf("%d entries, %d bytes each, %.1f%% of the budget; a collection stops the program for %v", st.Entries, real/int64(st.Entries),
		float64(real)*100/budget, time.Duration(m.PauseTotalNs-pause))
	if st.Entries != n {
		t.Fatalf("%d entries", st.Entries)
	}
	if real > budget*105/100 || real < st.Bytes*95/100 || real > st.Bytes*105/100 {
		t.Errorf("%d bytes, accounted %d of %d", real, st.Bytes, budget)
	}
	if real/n > 300 {
		t.Errorf("%d bytes an entry", real/n)
	}
}

// putNumbered stores e as the answer to the name of numbered(i).
func putNumbered(c *Cache, e *Entry, i int) []byte {
	digits := e.buf[headerLen+1+len("host-"):]
	for d := 5; d >= 0; d, i = d-1, i/10 {
		digits[d] = '0' + byte(i%10)
	}
	key := append(append(make([]byte, 0, maxNameWire+keyTail), e.buf[headerLen:questionEnd(e.Msg())]...), 0)
	e.ttl = 30
	c.replace(key, e)
	return key
}

// BenchmarkGrowth looks up and copies random names in caches of growing size.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := New(Options{Bytes: 512 << 20}).Cache("zone", Policy{})
			e, err := NewEntry(numbered(0))
			if err != nil {
				b.Fatal(err)
			}
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = putNumbered(c, e, i)
			}
			now := time.Now()
			rnd := uint64(1)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				rnd = rnd*6364136223846793005 + 1442695040888963407
				if c.GetInto(keys[rnd>>33%uint64(n)], now, e).State != Fresh {
					b.Fatal("miss")
				}
			}
		})
	}
}

// BenchmarkSetBudget halves the budget of a cache of a million names. Lookups in a
// shard wait for a part of that time.
func BenchmarkSetBudget(b *testing.B) {
	e, err := NewEntry(numbered(0))
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		b.StopTimer()
		s := New(Options{Bytes: 256 << 20, Shards: 8})
		c := s.Cache("zone", Policy{})
		for i := range 1_000_000 {
			putNumbered(c, e, i)
		}
		b.StartTimer()
		s.SetBudget(128 << 20)
	}
}
