package daemon

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/watch"
)

// reloadRequests has capacity 1: a pending request covers later ones.
type reloadRequests chan string

// add requests a reload.
func (r reloadRequests) add(reason string) {
	select {
	case r <- reason:
	default:
	}
}

// reloader reads the Corefile again when something requests it.
type reloader struct {
	base
	files    *corefiles
	active   *activeConfig
	requests reloadRequests
	failed   <-chan error // a listener failed
	ok       prometheus.Gauge
	failures prometheus.Counter

	lastError string // of the last reload; empty if it succeeded
}

func newReloader(b base, files *corefiles, active *activeConfig, requests reloadRequests, failed <-chan error) *reloader {
	r := &reloader{
		base: b, files: files, active: active, requests: requests, failed: failed,
		ok: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_config_last_reload_successful", Help: "0 if the last reload failed and the configuration before it is in use.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coredns_reload_failed_total", Help: "Reloads that failed and changed nothing.",
		}),
	}
	r.ok.Set(1)
	b.registry.MustRegister(r.ok, r.failures)
	return r
}

// run reloads on request until ctx is done or a listener fails.
func (r *reloader) run(ctx context.Context) error {
	const retryInterval = 10 * time.Second
	for {
		var retry <-chan time.Time
		if r.lastError != "" {
			// The cause, such as an imported file or a port in use, may be gone.
			retry = time.After(retryInterval)
		}
		select {
		case <-retry:
			r.reload(ctx, "retry")
		case <-ctx.Done():
			return nil
		case err := <-r.failed:
			return err
		case s := <-r.opts.Signals:
			r.reload(ctx, s.String())
		case reason := <-r.requests:
			r.reload(ctx, reason)
		}
	}
}

// reload reads the Corefile and uses it. If that fails, nothing changes.
func (r *reloader) reload(ctx context.Context, reason string) {
	cfg, err := r.files.read()
	if err == nil {
		err = r.active.use(ctx, cfg)
	}
	if err != nil && reason == "retry" && err.Error() == r.lastError {
		return
	}
	r.ok.Set(boolGauge(err == nil))
	r.lastError = ""
	if err != nil {
		r.lastError = err.Error()
		r.failures.Inc()
		r.log.Error("reload failed: the last good configuration stays in use", "reason", reason, "error", err)
		return
	}
	r.log.Info("reloaded", "reason", reason)
}

// followCorefile requests a reload when the Corefile or a file that it imports
// changes, until ctx is done.
func (a *app) followCorefile(ctx context.Context, reloads reloadRequests, log *slog.Logger) {
	interval := a.reload.Interval
	if j := a.reload.Jitter; j > 0 {
		interval += rand.N(2*j) - j
	}
	err := watch.Files(ctx, a.cfg.files, a.cfg.content, max(interval, time.Second), func() { reloads.add("file changed") })
	if err != nil && ctx.Err() == nil {
		log.Error("changes of the Corefile are no longer detected: send SIGHUP to reload", "file", a.cfg.files, "error", err)
	}
}
