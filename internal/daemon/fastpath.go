package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/top"
)

// planFastpath returns the fast path that cfg wants. Its tables are part of the
// memory of the cache.
func planFastpath(o *Options, cfg source) fastpath.Plan {
	return fastpath.NewPlan(cfg.Config, o.Redirect.Kubepods, o.Redirect.PodLogs)
}

// switchFastpath changes to a's plan if that differs from the present one. undo returns
// to the present plan and configuration. At the start of the daemon they do not differ.
func (c *activeConfig) switchFastpath(ctx context.Context, a *app) (undo func()) {
	before := c.fast.Plan()
	if before.Equal(a.fast) {
		return func() {}
	}
	c.useFastpath(ctx, a.fast)
	return func() {
		c.useFastpath(ctx, before)
		if err := c.server.Apply(ctx, c.bindings(c.app)); err != nil {
			c.log.Error("returning to the configuration before failed", "error", err)
		}
	}
}

func (c *activeConfig) useFastpath(ctx context.Context, plan fastpath.Plan) {
	if err := c.fast.Use(ctx, plan); err != nil {
		c.log.Error("turning the fast path off failed", "error", err)
	}
}

// bindings returns the bindings and targets of a, with the fast path if it is on.
func (c *activeConfig) bindings(a *app) []server.Binding {
	all := slices.Concat(a.bindings, a.targets)
	if !c.fast.Active() {
		return all
	}
	named := 0
	for i := range all {
		if !all[i].Addr.Addr().IsUnspecified() {
			all[i].Fastpath = c.fast
			named++
		}
	}
	if named == 0 {
		c.log.Warn("the kernel answers no queries: nodens listens on all addresses; name those of pods' nameservers with bind or -localip")
	}
	return all
}

func (d *daemon) startFastpath(ctx context.Context) error {
	d.active.fast.Start(ctx)
	return nil
}

func (d *daemon) closeFastpath(context.Context) error { return d.active.fast.Close() }

// fastpathState returns what the running daemon reports at -status-address. If that fails,
// it reads the metrics.
func (o *Options) fastpathState(ctx context.Context, cfg *config.Config) (fastpath.State, error) {
	source, err := o.StateSource()
	if err == nil {
		s, serr := top.First(ctx, source)
		if serr == nil {
			return fastpath.State{Loaded: s.Fastpath.State == "on", Leases: s.Fastpath.Interfaces}, nil
		}
		err = serr
	}
	s, merr := exportedFastpath(ctx, metricsAddr(cfg))
	if merr != nil {
		return s, fmt.Errorf("%w; %w", err, merr)
	}
	return s, nil
}

// StateSource returns the source of the running daemon's state.
func (o *Options) StateSource() (top.Source, error) {
	tokenFile := o.Status.TokenFile
	if tokenFile != "" {
		tokenFile = o.Path(tokenFile)
	}
	return top.Daemon(o.Status.Address, tokenFile)
}

// exportedFastpath returns what the running daemon exports in its metrics.
func exportedFastpath(ctx context.Context, addr string) (fastpath.State, error) {
	found, err := scrape(ctx, addr, "nodens_") // scrape fails if it finds none; some exist without the fast path
	s := fastpath.State{Leases: make(map[string]uint64)}
	for key, n := range found {
		if name, label, _ := strings.Cut(key, " "); name == "nodens_kernel_leases" {
			s.Leases[label] = uint64(n)
		} else if name == "nodens_kernel_passed_total" {
			s.Loaded = true
		}
	}
	return s, err
}
