package daemon

import (
	"context"
	"errors"
)

// openRedirect is the step before listening. What it cannot do it tells.
func (d *daemon) openRedirect(cfg source) func(context.Context) error {
	return func(ctx context.Context) error {
		if names := d.overruledFlags(cfg); len(names) > 0 {
			d.log.Info("the Corefile's redirect directive overrules flags", "flags", names)
		}
		d.redirect.open(ctx, d.planRedirect(cfg))
		return nil
	}
}

func (d *daemon) startRedirect(ctx context.Context) error {
	d.redirect.start(ctx)
	return nil
}

func (d *daemon) withdrawRedirect(context.Context) error { return d.redirect.withdraw() }

func (d *daemon) closeRedirect(context.Context) error {
	return errors.Join(d.redirect.leave(), d.redirect.close())
}

// switchRedirect sends pods to the fallbacks if a asks for another redirection
// than there is; the returned function ends that, with a in use or with the plan
// before it. At the start it leaves both to the steps.
func (d *daemon) switchRedirect(ctx context.Context, a *app) (resume func(inUse bool)) {
	if d.app == nil {
		return func(inUse bool) {
			if inUse && a.plan.err != nil {
				d.redirect.giveUp(ctx, a.plan.err)
			}
		}
	}
	before := d.redirect.current()
	if d.redirect.keeps(a.plan) {
		return func(bool) {}
	}
	if err := d.redirect.close(); err != nil {
		d.log.Error("end redirection", "error", err)
	}
	return func(inUse bool) {
		plan := before
		if inUse {
			plan = a.plan
		}
		d.redirect.reopen(ctx, plan)
		d.redirect.start(ctx)
	}
}
