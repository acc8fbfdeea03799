package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// guarded returns a memoryGuard with a full cache of 8 MiB, and a function that
// sets what the cgroup reports.
func guarded(t *testing.T, v2 bool) (*memoryGuard, func(used, idle, limit int64)) {
	t.Helper()
	const budget = 8 << 20
	store := cache.New(cache.Options{Bytes: budget, Shards: 1})
	c := store.Cache("zone", cache.Policy{})
	for i := range 50_000 {
		rr, err := dns.NewRR(fmt.Sprintf("host-%d.example. 60 IN A 192.0.2.1", i))
		if err != nil {
			t.Fatal(err)
		}
		m := new(dns.Msg).SetQuestion(rr.Header().Name, dns.TypeA)
		m.Response, m.Answer = true, []dns.RR{rr}
		var name [256]byte
		n, err := dns.PackDomainName(rr.Header().Name, name[:], 0, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(cache.AppendKey(nil, name[:n], dns.TypeA, dns.ClassINET, false, false, false), m); err != nil {
			t.Fatal(err)
		}
	}
	root := fstest.MapFS{}
	g := &memoryGuard{root: root, group: memoryGroup{v2, "g"}, store: store, free: func() {}, log: slog.New(slog.DiscardHandler), max: budget, budget: budget}
	return g, func(used, idle, limit int64) {
		names := [4]string{"memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", "inactive_file"}
		if v2 {
			names = [4]string{"memory.current", "memory.max", "inactive_file", "total_inactive_file"}
		}
		root["g/"+names[0]] = &fstest.MapFile{Data: fmt.Appendln(nil, used)}
		root["g/"+names[1]] = &fstest.MapFile{Data: fmt.Appendln(nil, limit)}
		root["g/memory.stat"] = &fstest.MapFile{Data: fmt.Appendf(nil, "cache 7\n%s %d\n%s 1\n", names[2], idle, names[3])}
	}
}

func TestMemoryGuard(t *testing.T) {
	for _, v2 := range []bool{true, false} {
		g, set := guarded(t, v2)
		full := g.store.Stats()
		check := func(used, idle, limit int64) cache.Stats {
			set(used, idle, limit)
			g.check()
			return g.store.Stats()
		}
		if st := check(80, 0, 100); st != full {
			t.Errorf("v2 %t, below nine tenths of the limit: %+v, was %+v", v2, st, full)
		}
		if st := check(99, 10, 100); st != full {
			t.Errorf("v2 %t, the inactive file cache counts: %+v", v2, st)
		}
		first := check(95, 1, 100)
		if first.Budget >= full.Budget*4/5 || first.Bytes > first.Budget {
			t.Errorf("v2 %t, under pressure: %+v", v2, first)
		}
		second := check(95, 1, 100)
		if second.Budget >= first.Budget || second.Entries >= first.Entries {
			t.Errorf("v2 %t, still under pressure: %+v after %+v", v2, second, first)
		}
		for range 100 {
			check(1000, 0, 100)
		}
		if st := g.store.Stats(); st.Budget != minCache || st.Entries == 0 {
			t.Errorf("v2 %t, under pressure for long: %+v", v2, st)
		}
		for range calmChecks - 1 {
			check(10, 0, 100)
		}
		if st := check(80, 0, 100); st.Budget != minCache {
			t.Errorf("v2 %t, the budget rises too early: %+v", v2, st)
		}
		for range 100 * calmChecks {
			check(10, 0, 100)
		}
		if st := g.store.Stats(); st.Budget != full.Budget {
			t.Errorf("v2 %t, the budget does not rise again: %+v", v2, st)
		}
	}
}

// The heap's limit follows a memory limit that changes while the daemon runs.
func TestHeapFollowsLimit(t *testing.T) {
	g, set := guarded(t, true)
	var heap []int64
	g.limit, g.heap, g.setHeap = 100<<20, 40<<20, func(n int64) int64 { heap = append(heap, n); return 0 }
	for _, limit := range []int64{100 << 20, 80 << 20, 80 << 20, 10 << 20, 100 << 20} {
		set(0, 0, limit)
		g.check()
	}
	if want := []int64{40 << 20, 20 << 20, minHeap, 40 << 20}; !slices.Equal(heap, want) {
		t.Errorf("heap limits %v, want %v", heap, want)
	}
}

// The heap may use half of what the cache does not use, unless memory is short.
func TestHeapBorrowsFromCache(t *testing.T) {
	g, set := guarded(t, true)
	full, empty := g.store, cache.New(cache.Options{Bytes: g.max})
	var heap []int64
	g.limit, g.heap, g.setHeap = 100<<20, 40<<20, func(n int64) int64 { heap = append(heap, n); return 0 }
	for _, step := range []struct {
		used  int64
		store *cache.Store
	}{{10 << 20, full}, {10 << 20, empty}, {80 << 20, empty}, {10 << 20, empty}, {10 << 20, full}} {
		g.store = step.store
		set(step.used, 0, 100<<20)
		g.check()
	}
	if want := []int64{40 << 20, 44 << 20, 40 << 20, 44 << 20, 40 << 20}; !slices.Equal(heap, want) {
		t.Errorf("heap limits %v, want %v", heap, want)
	}
}
