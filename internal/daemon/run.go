package daemon

import (
	"context"
	"errors"

	"github.com/nodens-dns/nodens/internal/config"
)

// Run serves until ctx is done, a listener fails or the supervisor ends.
func Run(ctx context.Context, o Options) error {
	b := newBase(&o)
	if err := b.logLines.start(ctx); err != nil {
		return err
	}
	defer b.logLines.stop(context.WithoutCancel(ctx))
	files := &corefiles{opts: &o, warn: func(err error) {
		b.log.Error("configuration", "error", err)
		b.setupErrors.WithLabelValues("configmap").Inc()
	}}
	cfg, kept, err := files.readFirst(configKeeper{o.Supervisor.Shared()})
	if err != nil {
		return err
	}
	// The steps stop the parts in order; ctx must not stop them all at once.
	d, err := newDaemon(context.WithoutCancel(ctx), b, files, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := untilOrphaned(ctx, o.Supervisor, b.log)
	defer cancel()
	steps := d.steps(cfg)
	if err := start(ctx, steps); err != nil {
		return err
	}
	if kept {
		d.reloader.requests.add("worker restarted")
	}
	err = d.reloader.run(ctx)
	return errors.Join(err, stop(context.WithoutCancel(ctx), steps))
}

// ReadCorefile reads the configuration that a daemon with these options uses. It
// calls warn for each error that does not stop such a daemon.
func (o *Options) ReadCorefile(warn func(error)) (*config.Config, error) {
	files := corefiles{opts: o, warn: warn}
	cfg, err := files.read()
	return cfg.Config, err
}
