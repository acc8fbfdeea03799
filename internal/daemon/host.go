package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/nodens-dns/nodens/netsetup"
)

// openHost prepares the set-up of the host, where the flags ask for any.
// Loopback addresses need none, and the sample needs no netfilter rules.
func (d *daemon) openHost(cfg source) error {
	c := d.opts.HostConfig()
	if len(c.Addrs) == 0 || !d.opts.SetupInterface && !d.opts.SetupRules {
		return nil
	}
	c.WildcardListeners = listensOnWildcard(cfg)
	c.Generation = rand.Text()
	c.Logger, c.Registerer = d.log, d.registry
	c.OnError = func(object string, _ error) { d.metrics.setupErrors.WithLabelValues(setupErrorType(object)).Inc() }
	h, err := netsetup.New(c)
	d.host = h
	return err
}

// HostConfig is what the flags say of the host.
func (f *Options) HostConfig() netsetup.Config {
	return netsetup.Config{
		Interface:    f.InterfaceName,
		Addrs:        slices.DeleteFunc(slices.Clone(f.LocalIPs), netip.Addr.IsLoopback),
		DNSPort:      f.DNSPort,
		HealthPort:   f.HealthPort,
		SyncInterval: f.SyncInterval,
	}
}

func listensOnWildcard(cfg source) bool {
	for _, b := range cfg.Blocks {
		if len(b.Bind) == 0 {
			return true
		}
		for _, s := range b.Bind {
			if a, err := netip.ParseAddr(s); err == nil && a.IsUnspecified() {
				return true
			}
		}
	}
	return false
}

// setupErrorType is node-cache's name for what went wrong.
func setupErrorType(object string) string {
	if object == "rules" || object == "accepts" {
		return "iptables"
	}
	return "interface_check"
}

func (d *daemon) ensureAddresses(ctx context.Context) error {
	if d.host == nil || !d.opts.SetupInterface {
		return nil
	}
	return d.host.EnsureAddresses(ctx)
}

func (d *daemon) removeAddresses(ctx context.Context) error {
	if d.host == nil {
		return nil
	}
	var err error
	if d.opts.SetupInterface && !d.opts.SkipTeardown {
		err = d.host.RemoveAddresses(ctx)
	}
	return errors.Join(err, d.host.Close())
}

// followBinds tells the host set-up of sockets that a reload has opened.
func (d *daemon) followBinds(cfg source) {
	if d.host == nil {
		return
	}
	if err := d.host.SetWildcardListeners(listensOnWildcard(cfg)); err != nil {
		d.log.Error("netfilter rules do not follow the Corefile's binds", "error", err)
		d.metrics.setupErrors.WithLabelValues("iptables").Inc()
	}
}

// wantsRules says whether the host gets netfilter rules of ours.
func (d *daemon) wantsRules() bool {
	return d.host != nil && d.opts.SetupRules && !d.opts.Sample
}

// ensureAccepts opens host firewalls that drop by default, our own query to
// ourselves included. A failure is told and tried again by the watch: it matters
// only where there is such a firewall.
func (d *daemon) ensureAccepts(ctx context.Context) error {
	if d.host != nil && !d.opts.SetupRules {
		if err := d.host.RemoveOrphanedRules(ctx); err != nil {
			d.log.Warn("rules that a crash has left stay", "error", err)
		}
	}
	if !d.wantsRules() {
		return nil
	}
	if err := d.host.EnsureAccepts(ctx); err != nil {
		d.log.Error("accept rules in other nftables tables are missing", "error", err)
		d.metrics.setupErrors.WithLabelValues("iptables").Inc()
	}
	return nil
}

// removeAccepts comes after the drain: until then answers have to pass.
func (d *daemon) removeAccepts(ctx context.Context) error {
	if !d.wantsRules() || d.opts.SkipTeardown {
		return nil
	}
	return d.host.RemoveAccepts(ctx)
}

// ensureRules installs the netfilter rules and begins to watch over the host.
// Without rules DNS works, only tracked: so a failure is told and tried again
// by the watch, and not the end.
func (d *daemon) ensureRules(ctx context.Context) error {
	if d.host == nil {
		return nil
	}
	if d.wantsRules() {
		if err := d.host.EnsureRules(ctx); err != nil {
			d.log.Error("netfilter rules are missing", "error", err)
			d.metrics.setupErrors.WithLabelValues("iptables").Inc()
		}
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.host.Watch(watch); err != nil {
			d.log.Error("changes of the host set-up are no longer repaired", "error", err)
		}
	})
	d.stopHost = func() { cancel(); wg.Wait() }
	return nil
}

func (d *daemon) removeRules(ctx context.Context) error {
	if d.host == nil {
		return nil
	}
	if d.stopHost != nil {
		d.stopHost()
	}
	if !d.wantsRules() || d.opts.SkipTeardown {
		return nil
	}
	return d.host.RemoveRules(ctx)
}

// explain adds to an error of serving DNS who is in the way.
func (d *daemon) explain(err error) error {
	return explainPort(err, d.opts.DNSPort, d.opts.LocalIPs...)
}

// explainPort adds to an error of listening who is in the way.
func explainPort(err error, port uint16, addrs ...netip.Addr) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	holders, herr := netsetup.PortHolders("/proc", port, addrs...)
	if herr != nil {
		return err
	}
	for _, h := range holders {
		err = fmt.Errorf("%w; in the way: %v", err, h)
	}
	return err
}
