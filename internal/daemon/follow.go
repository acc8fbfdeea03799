package daemon

import (
	"context"
	"math/rand/v2"
	"os"
	"time"
)

// askReload asks for a reload; one that is pending already covers it.
func (d *daemon) askReload(why string) {
	select {
	case d.reloads <- why:
	default:
	}
}

// follow reloads when it is asked to, until ctx is done or a listener fails.
func (d *daemon) follow(ctx context.Context, signals <-chan os.Signal) error {
	const again = 10 * time.Second
	for {
		var retry <-chan time.Time
		if d.failing != "" {
			// What was in the way, an import or a port, may be out of it.
			retry = time.After(again)
		}
		select {
		case <-retry:
			d.reload(ctx, "retry")
		case <-ctx.Done():
			return nil
		case err := <-d.server.Failed():
			return err
		case s := <-signals:
			d.reload(ctx, s.String())
		case why := <-d.reloads:
			d.reload(ctx, why)
		}
	}
}

// reload reads the Corefile again. A bad one changes nothing.
func (d *daemon) reload(ctx context.Context, why string) {
	cfg, err := d.files.read()
	if err == nil {
		err = d.use(ctx, cfg)
	}
	if err != nil && why == "retry" && err.Error() == d.failing {
		return
	}
	d.metrics.reloaded(err)
	d.failing = ""
	if err != nil {
		d.failing = err.Error()
		d.log.Error("reload failed: the last good configuration stays in use", "why", why, "error", err)
		return
	}
	d.log.Info("reloaded", "why", why)
}

// followCorefile asks for a reload when the Corefile or a file it imports has
// changed.
func (d *daemon) followCorefile(ctx context.Context, a *app) {
	every := a.reload.Interval
	if j := a.reload.Jitter; j > 0 {
		every += rand.N(2*j) - j
	}
	err := watchFiles(ctx, a.cfg.files, a.cfg.content, max(every, time.Second), func() { d.askReload("file changed") })
	if err != nil && ctx.Err() == nil {
		d.log.Error("the Corefile is no longer followed; reload by SIGHUP", "error", err)
	}
}

// followHosts reads a hosts file again when it has changed.
func (d *daemon) followHosts(ctx context.Context, h *hostsFile) {
	err := watchFiles(ctx, []string{h.path}, h.content, h.interval, func() {
		if err := h.hosts.Reload(); err != nil {
			d.log.Error("keep the hosts as they were", "error", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		d.log.Error("the hosts file is no longer followed", "file", h.path, "error", err)
	}
}

// askLoopProbe asks for the loop probes to be sent again.
func (d *daemon) askLoopProbe() {
	select {
	case d.probeLoop <- struct{}{}:
	default:
	}
}

// followLoops sends the loop probes of a's zones: at first, after upstreams
// have changed, and for as long as there is a loop, to see it end.
func (d *daemon) followLoops(ctx context.Context, a *app) {
	const again = 30 * time.Second
	for {
		var retry <-chan time.Time
		if d.probeLoops(ctx, a) {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.probeLoop:
		case <-retry:
		}
	}
}

// probeLoops reports whether any zone of a forwards to itself.
func (d *daemon) probeLoops(ctx context.Context, a *app) bool {
	found := make(map[string]bool)
	for _, z := range a.zones {
		if z.Loop == nil {
			continue
		}
		probe, cancel := context.WithTimeout(ctx, 5*time.Second)
		looped := z.Loop.Run(probe, z)
		cancel()
		found[z.Name] = found[z.Name] || looped
		if looped {
			d.log.Error("forwarding loop: queries of this zone come back to this cache; look at the zone's upstreams and at resolv.conf", "zone", z.Name)
		}
	}
	any := false
	for name, looped := range found {
		d.metrics.loop.WithLabelValues(name).Set(boolGauge(looped))
		any = any || looped
	}
	return any
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
