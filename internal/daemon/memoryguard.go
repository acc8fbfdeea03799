package daemon

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/tick"
)

// memoryGuard shrinks the cache before the kernel's OOM killer ends the process.
// Other processes of the cgroup, queries in flight or a lowered limit may leave less
// memory than the budget.
type memoryGuard struct {
	root    fs.FS
	group   memoryGroup
	limited bool  // false: the guard does nothing
	limit   int64 // bytes, at the start
	store   *cache.Store
	heap    int64             // bytes, of the garbage collector at the start
	setHeap func(int64) int64 // nil: GOMEMLIMIT is in the environment
	free    func()            // returns unused memory to the host
	log     *slog.Logger
	max     int64 // bytes; the budget without pressure

	budget int64
	inUse  int64  // limit of the heap, bytes
	calm   int    // checks without pressure, in a row
	stop   func() // nil: not running
}

const (
	guardInterval = time.Second
	calmChecks    = 10      // before the budget rises again
	minCache      = 1 << 20 // bytes; the budget does not fall below
)

// newCache makes the store, and the guard that keeps it within the memory limit of
// the cgroup, whose files are in root.
func newCache(root fs.FS, l limits, o cache.Options, log *slog.Logger) (*cache.Store, *memoryGuard) {
	_, group, limited := memoryLimit(root)
	store := cache.New(o)
	budget := store.Stats().Budget
	return store, &memoryGuard{
		root: root, group: group, limited: limited, limit: l.memory, heap: l.heap, store: store,
		setHeap: debug.SetMemoryLimit, free: debug.FreeOSMemory, log: log, max: budget, budget: budget,
	}
}

// up limits the garbage collector by the cgroup's limit and starts the checks.
// GOMEMLIMIT in the environment takes precedence.
func (g *memoryGuard) up(ctx context.Context) error {
	if !g.limited {
		return nil
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		g.setHeap = nil
	} else {
		g.check()
	}
	g.stop = background(ctx, func(ctx context.Context) { tick.Call(ctx, guardInterval, g.check) })
	return nil
}

func (g *memoryGuard) down(context.Context) error {
	if g.stop != nil {
		g.stop()
	}
	return nil
}

// check lowers the budget by a quarter of what the cache uses if the group uses
// more than nine tenths of its limit. It raises the budget by a quarter after
// calmChecks checks below three quarters of the limit.
func (g *memoryGuard) check() {
	limit, limited := g.group.limit(g.root)
	used, known := g.group.used(g.root)
	if limited && g.setHeap != nil {
		g.limitHeap(limit, known && used < limit/4*3)
	}
	switch {
	case !limited || !known:
		g.set(g.max)
	case used > limit/10*9:
		g.calm = 0
		before := g.budget
		g.set(max(min(g.budget, g.store.Stats().Bytes)/4*3, minCache))
		if g.budget < before {
			g.free()
			g.log.Warn("memory is nearly used up: the cache is made smaller", "used", used, "limit", limit, "budget", g.budget)
		}
	case used < limit/4*3 && g.budget < g.max:
		if g.calm++; g.calm >= calmChecks {
			g.calm = 0
			g.set(min(g.budget/4*5, g.max))
		}
	}
}

// limitHeap sets the limit of the heap for a group with the given limit. If lend is set,
// the heap gets half of the memory that the cache does not use yet, in MiB: near its limit,
// the garbage collector takes half of the CPU. The other half is for the answers that come
// before the next check.
func (g *memoryGuard) limitHeap(limit int64, lend bool) {
	heap := max(g.heap+limit-g.limit, minHeap)
	if lend {
		heap += max(g.max-g.store.Stats().Bytes, 0) >> 21 << 20
	}
	if heap != g.inUse {
		g.inUse = heap
		g.setHeap(heap)
	}
}

func (g *memoryGuard) set(budget int64) {
	if budget != g.budget {
		g.budget = budget
		g.store.SetBudget(budget)
	}
}
