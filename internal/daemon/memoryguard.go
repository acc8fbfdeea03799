package daemon

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/cache"
)

// memoryGuard shrinks the cache before the kernel's OOM killer ends the process:
// other processes of the cgroup, queries in flight or a lowered limit may take
// memory that the budget counts on.
type memoryGuard struct {
	root    fs.FS
	group   memoryGroup
	limit   int64 // bytes, at the start
	limited bool  // false: the guard does nothing
	store   *cache.Store
	free    func() // returns unused memory to the host
	log     *slog.Logger
	max     int64 // bytes; the budget without pressure

	budget int64
	calm   int    // checks without pressure, in a row
	stop   func() // nil: not running
}

const (
	guardInterval = time.Second
	calmChecks    = 10      // before the budget rises again
	minCache      = 1 << 20 // bytes; the budget does not fall below
)

// newCache makes the store, of size bytes or, if that is 0, by the memory limit,
// and the guard that keeps the store within the limit.
func newCache(size int64, now func() time.Time, log *slog.Logger) (*cache.Store, *memoryGuard) {
	root := os.DirFS("/")
	limit, group, limited := memoryLimit(root)
	if size == 0 {
		size = cacheBudget(limit, limited)
	}
	store := cache.New(cache.Options{Bytes: size, Now: now})
	budget := store.Stats().Budget
	return store, &memoryGuard{
		root: root, group: group, limit: limit, limited: limited, store: store,
		free: debug.FreeOSMemory, log: log, max: budget, budget: budget,
	}
}

// up limits the garbage collector by the cgroup's limit and starts the checks.
// GOMEMLIMIT in the environment takes precedence.
func (g *memoryGuard) up(ctx context.Context) error {
	if !g.limited {
		return nil
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit(g.limit, g.max))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); g.run(ctx) }()
	g.stop = func() { cancel(); <-done }
	return nil
}

func (g *memoryGuard) down(context.Context) error {
	if g.stop != nil {
		g.stop()
	}
	return nil
}

func (g *memoryGuard) run(ctx context.Context) {
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.check()
		}
	}
}

// check lowers the budget by a quarter of what the cache uses if the group uses
// more than nine tenths of its limit. It raises the budget by a quarter after
// calmChecks checks below three quarters of the limit.
func (g *memoryGuard) check() {
	limit, limited := g.group.limit(g.root)
	used, known := g.group.used(g.root)
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

func (g *memoryGuard) set(budget int64) {
	if budget != g.budget {
		g.budget = budget
		g.store.SetBudget(budget)
	}
}
