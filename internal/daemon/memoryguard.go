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

// memoryGuard gives up cached answers before the kernel kills us for want of
// memory: other processes of the cgroup, queries under way, or a limit that was
// lowered may take what was reckoned with.
type memoryGuard struct {
	root  fs.FS
	group memoryGroup
	store *cache.Store
	free  func() // gives unused memory back to the host
	log   *slog.Logger

	most   int64 // the budget in good times
	budget int64
	calm   int // looks without pressure, in a row
}

const (
	guardEvery = time.Second
	calmLooks  = 10      // before the budget rises again
	leastCache = 1 << 20 // octets that it does not fall below
)

// look lowers the budget by a quarter of what is used when nine tenths of the
// limit are taken, and raises it by a quarter after a while below three
// quarters.
func (g *memoryGuard) look() {
	limit, limited := g.group.limit(g.root)
	used, known := g.group.used(g.root)
	switch {
	case !limited || !known:
		g.set(g.most)
	case used > limit/10*9:
		g.calm = 0
		was := g.budget
		g.set(max(min(g.budget, g.store.Stats().Bytes)/4*3, leastCache))
		if g.budget < was {
			g.free()
			g.log.Warn("memory is nearly used up: the cache gives way", "used", used, "limit", limit, "budget", g.budget)
		}
	case used < limit/4*3 && g.budget < g.most:
		if g.calm++; g.calm >= calmLooks {
			g.calm = 0
			g.set(min(g.budget/4*5, g.most))
		}
	}
}

func (g *memoryGuard) set(budget int64) {
	if budget != g.budget {
		g.budget = budget
		g.store.SetBudget(budget)
	}
}

// run looks until ctx is done.
func (g *memoryGuard) run(ctx context.Context) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.look()
		}
	}
}

// guardMemory bounds the collector by the cgroup's limit and begins to watch it;
// without a limit there is nothing to do. GOMEMLIMIT in the environment wins.
func (d *daemon) guardMemory(ctx context.Context) error {
	root := os.DirFS("/")
	limit, group, limited := memoryLimit(root)
	if !limited {
		return nil
	}
	budget := d.store.Stats().Budget
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit(limit, budget))
	}
	g := &memoryGuard{root: root, group: group, store: d.store, free: debug.FreeOSMemory, log: d.log, most: budget, budget: budget}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); g.run(watch) }()
	d.stopGuard = func() { cancel(); <-done }
	return nil
}

func (d *daemon) unguardMemory(context.Context) error {
	if d.stopGuard != nil {
		d.stopGuard()
	}
	return nil
}
