package daemon

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
)

// drainTimeout limits the time that queries in flight have after SIGTERM.
const drainTimeout = 4 * time.Second

// activeConfig is the configuration in use. Its methods belong to one goroutine.
type activeConfig struct {
	base
	builder   *builder
	server    *server.Server
	admin     *adminServers
	store     *cache.Store
	pools     *pools
	taps      *taps
	redirect  *redirect.Redirector
	fast      *fastpath.Controller
	host      *hostSetup
	reloads   reloadRequests
	loops     *loopProber
	endpoints *endpointFollower
	caches    *cacheMetrics
	reporter  *reporter
	keeper    configKeeper

	app      *app   // nil: none yet
	stopWork func() // ends app's goroutines and waits for them
}

// use builds cfg and puts it in use. On an error, the configuration before stays
// in use.
func (c *activeConfig) use(ctx context.Context, cfg source) error {
	a, err := c.builder.build(cfg)
	if err == nil {
		err = c.fast.Check(a.fast)
	}
	if err != nil {
		c.retain()
		return err
	}
	resume, undo := c.switchRedirect(ctx, a), c.switchFastpath(ctx, a)
	if err := c.open(ctx, a); err != nil {
		c.retain()
		undo()
		resume(false)
		return err
	}
	c.stopWork()
	c.app = a
	c.level.Set(c.opts.LogLevel)
	if a.debug {
		c.level.Set(slog.LevelDebug)
	}
	runtime.SetBlockProfileRate(a.blockRate)
	c.caches.use(a.caches)
	c.reporter.use(cfg.Config)
	c.retain()
	c.startWork(ctx, a)
	resume(true)
	c.host.setListeners(cfg)
	c.keep(cfg)
	for _, w := range cfg.Warnings {
		c.log.Warn("configuration", "warning", w)
	}
	return nil
}

// keep saves cfg for the next worker.
func (c *activeConfig) keep(cfg source) {
	if err := c.keeper.save(cfg.kept); err != nil {
		c.log.Warn("saving the configuration for the next worker failed: it will read the files", "error", err)
	}
}

// open opens the sockets of a: all or none.
func (c *activeConfig) open(ctx context.Context, a *app) error {
	commit, abort, err := c.admin.prepare(ctx, a.endpoints)
	if err != nil && c.opts.Sample {
		// With the sample, another process may use these ports: serve without them.
		c.log.Warn("no /health, /ready and /metrics", "error", err)
		commit, abort, err = c.admin.prepare(ctx, nil)
	}
	if err != nil {
		return err
	}
	if err := c.listen(ctx, a); err != nil {
		abort()
		return explainPort(err, c.opts.DNSPort, c.opts.LocalIPs...)
	}
	commit()
	return nil
}

// listen serves a. If only the targets cannot be served, it serves a without
// redirection.
func (c *activeConfig) listen(ctx context.Context, a *app) error {
	err := c.server.Apply(ctx, c.bindings(a))
	if err == nil || len(a.targets) == 0 {
		return err
	}
	without := *a
	without.targets = nil
	if c.server.Apply(ctx, c.bindings(&without)) != nil {
		return err
	}
	a.targets, a.plan.Err = nil, err
	return nil
}

// retain ends the pools and drops the caches that app does not use.
func (c *activeConfig) retain() {
	pools, taps, caches := map[string]bool{}, map[string]bool{}, map[string]bool{}
	if c.app != nil {
		pools, taps = c.app.pools, c.app.taps
		for _, k := range c.app.caches {
			caches[k.id] = true
		}
	}
	c.pools.retain(pools)
	c.taps.retain(taps)
	c.store.Retain(caches)
}

// switchRedirect sends pods to the fallbacks if a's plan differs from the open one.
// The returned function redirects again: by a's plan if a is in use, else by the
// plan before. At the start of the daemon, openRedirect and startRedirect do this
// instead.
func (c *activeConfig) switchRedirect(ctx context.Context, a *app) (resume func(inUse bool)) {
	if c.app == nil {
		return func(inUse bool) {
			if inUse && a.plan.Err != nil {
				c.redirect.GiveUp(a.plan.Err)
			}
		}
	}
	before := c.redirect.Plan()
	if c.redirect.Keeps(a.plan) {
		return func(bool) {}
	}
	if err := c.redirect.Close(); err != nil {
		c.log.Error("closing the redirection failed", "error", err)
	}
	return func(inUse bool) {
		plan := before
		if inUse {
			plan = a.plan
		}
		c.host.setTargets(plan)
		c.redirect.Open(ctx, plan)
		c.redirect.Start(ctx)
	}
}

// startWork starts the goroutines that follow what a depends on.
func (c *activeConfig) startWork(ctx context.Context, a *app) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	c.stopWork = func() { cancel(); work.Wait() }
	work.Go(func() { c.loops.run(ctx, a.zones) })
	for _, h := range a.hosts {
		if h.interval > 0 {
			work.Go(func() { h.follow(ctx, c.log) })
		}
	}
	if a.search != nil {
		work.Go(func() { a.search.follow(ctx, c.reloads, c.log) })
	}
	if a.reload != nil {
		work.Go(func() { a.followCorefile(ctx, c.reloads, c.log) })
	}
	if a.wantsEndpoints() {
		work.Go(func() { c.endpoints.run(ctx) })
	}
}

// stop drains and closes everything.
func (c *activeConfig) stop(ctx context.Context) error {
	c.stopWork()
	drain, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	err := c.server.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		// Not an error: a client that does not read must not delay the stop.
		c.log.Warn("queries in flight were dropped", "error", err)
		err = nil
	}
	requests, cancelRequests := context.WithTimeout(ctx, drainTimeout/8)
	defer cancelRequests()
	err = errors.Join(err, c.admin.close(requests))
	c.pools.retain(nil)
	c.taps.retain(nil)
	return err
}
