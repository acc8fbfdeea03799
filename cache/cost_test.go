package cache

import (
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
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

	for what, m := range map[string]*dns.Msg{
		"fresh": data, "stale": stale, "denial": denied, "failure": failed, "miss": servfail("none.example."),
	} {
		k := keyOf(m)
		if n := testing.AllocsPerRun(100, func() { f.get(k) }); n != 0 {
			t.Errorf("Get, %s: %v allocations", what, n)
		}
	}
	k := keyOf(data)
	if n := testing.AllocsPerRun(100, func() {
		h := f.get(k)
		h.Entry.AgeTTLs(buf[:copy(buf, h.Entry.Msg())], 3)
	}); n != 0 {
		t.Errorf("copy and AgeTTLs: %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { key = AppendKey(key[:0], name, 1, 1, true, false) }); n != 0 {
		t.Errorf("AppendKey: %v allocations", n)
	}
}

// What 100,000 entries take on the heap is what was accounted, within 15 %.
func TestAccountedBytesAreReal(t *testing.T) {
	const n = 100_000
	soa := parseRRs(t, []string{soa60of300})
	tests := []struct {
		name string
		p    Policy
		put  func(c *Cache, i int)
	}{
		{"data", Policy{}, func(c *Cache, i int) { mustPut(t, c, numbered(i)) }},
		{"half of it replaced by denials", Policy{}, func(c *Cache, i int) {
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
			c := s.Cache("zone", tt.p)
			before := heap()
			for i := range n {
				tt.put(c, i)
			}
			grown := heap() - before
			st := s.Stats()
			t.Logf("%d bytes an entry accounted, %d on the heap", st.Bytes/n, grown/n)
			if st.Entries != n {
				t.Fatalf("%d entries", st.Entries)
			}
			if ratio := float64(grown) / float64(st.Bytes); ratio < 0.85 || ratio > 1.15 {
				t.Errorf("heap / accounted = %.2f", ratio)
			}
			runtime.KeepAlive(s)
		})
	}
}

// heap returns the octets of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what sync.Pools held goes with the second
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
				for i := 0; pb.Next(); i++ {
					h := c.Get(keys[i*10%names+kind.first], now)
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
