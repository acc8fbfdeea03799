package daemon

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/kube"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// planRedirect works out what cfg and the options ask of redirection.
func (d *daemon) planRedirect(cfg source) redirect.Plan {
	_, accountErr := kube.InCluster(d.opts.Getenv, d.opts.Cluster.Account)
	settings := d.redirectSettings(cfg)
	return redirect.NewPlan(redirect.Input{
		Config: cfg.Config, Settings: settings,
		LocalIPs: d.opts.LocalIPs, NodeIPs: d.opts.Redirect.NodeIPs, DNSPort: d.opts.DNSPort,
		Kubepods: settings.Kubepods, PinDir: d.opts.Redirect.PinDir,
		ClusterDomain: d.opts.ClusterDomain,
		UpstreamIP:    d.serviceIP(d.opts.UpstreamService), ClusterIP: d.serviceIP(d.opts.Cluster.Service),
		LearnsEndpoints: accountErr == nil, Sample: d.opts.Sample, Getenv: d.opts.Getenv,
	})
}

// serviceIP returns the cluster IP of a Service in the environment, or an invalid
// address.
func (d *daemon) serviceIP(service string) netip.Addr {
	a, _ := netip.ParseAddr(d.opts.Getenv(serviceEnv(service)))
	return a
}

// openRedirect is the step before listening. It never fails: without redirection
// the daemon serves by address.
func (d *daemon) openRedirect(cfg source) func(context.Context) error {
	return func(ctx context.Context) error {
		if names := d.overruledFlags(cfg); len(names) > 0 {
			d.log.Info("the Corefile's redirect directive overrules flags", "flags", names)
		}
		d.redirect.Open(ctx, d.planRedirect(cfg))
		return nil
	}
}

func (d *daemon) startRedirect(ctx context.Context) error {
	d.redirect.Start(ctx)
	return nil
}

func (d *daemon) withdrawRedirect(context.Context) error { return d.redirect.Withdraw() }

func (d *daemon) closeRedirect(context.Context) error {
	return errors.Join(d.redirect.Forget(), d.redirect.Close())
}

// switchRedirect sends pods to the fallbacks if a's plan differs from the open
// one. The returned function redirects again, by a's plan if a is in use, else by
// the plan before. At the start, the steps do both.
func (d *daemon) switchRedirect(ctx context.Context, a *app) (resume func(inUse bool)) {
	if d.app == nil {
		return func(inUse bool) {
			if inUse && a.plan.Err != nil {
				d.redirect.GiveUp(a.plan.Err)
			}
		}
	}
	before := d.redirect.Plan()
	if d.redirect.Keeps(a.plan) {
		return func(bool) {}
	}
	if err := d.redirect.Close(); err != nil {
		d.log.Error("end redirection", "error", err)
	}
	return func(inUse bool) {
		plan := before
		if inUse {
			plan = a.plan
		}
		d.redirect.Open(ctx, plan)
		d.redirect.Start(ctx)
	}
}
