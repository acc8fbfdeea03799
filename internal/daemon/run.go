package daemon

import (
	"context"
	"errors"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// Run serves until ctx is done, a listener fails or the supervisor ends.
func Run(ctx context.Context, o Options) error {
	// Each step tells its part to stop, in order: ctx must not stop them all at once.
	d, err := newDaemon(context.WithoutCancel(ctx), &o)
	if err != nil {
		return err
	}
	ctx, cancel := untilOrphaned(ctx, o.Supervisor, d.log)
	defer cancel()
	cfg, err := d.files.read()
	if err != nil {
		return err
	}
	if err := d.openHost(cfg); err != nil {
		return err
	}
	steps := d.steps(cfg)
	if err := climb(ctx, steps); err != nil {
		return err
	}
	err = d.follow(ctx, o.Signals)
	return errors.Join(err, descend(context.WithoutCancel(ctx), steps))
}

// ReadCorefile reads the configuration that a daemon with these options would
// use. It passes to warn what such a daemon would log and go on without.
func (o *Options) ReadCorefile(warn func(error)) (*config.Config, error) {
	files := corefiles{opts: o, warn: warn}
	cfg, err := files.read()
	return cfg.Config, err
}

// RedirectSettings returns what the Corefile and the flags say of redirection.
func (o *Options) RedirectSettings(cfg *config.Config) config.Redirect {
	d := &daemon{opts: o}
	return d.redirectSettings(source{Config: cfg})
}

// OptedOut returns the cgroups, by inode, of the pods that names mean.
func (o *Options) OptedOut(kubepods string, names []config.PodName) (map[uint64]bool, error) {
	return redirect.OptedOut(kubepods, o.Redirect.PodLogs, names)
}
