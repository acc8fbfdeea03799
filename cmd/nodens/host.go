package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/netsetup"
)

// openHost prepares the set-up of the host, where the flags ask for any.
// Loopback addresses need none, and the sample needs no netfilter rules.
func (d *daemon) openHost(cfg source) error {
	c := d.flags.hostConfig()
	if len(c.Addrs) == 0 || !d.flags.setupInterface && !d.flags.setupRules {
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

// hostConfig is what the flags say of the host.
func (f *flags) hostConfig() netsetup.Config {
	return netsetup.Config{
		Interface:    f.interfaceName,
		Addrs:        slices.DeleteFunc(slices.Clone(f.localIPs), netip.Addr.IsLoopback),
		DNSPort:      f.dnsPort,
		HealthPort:   f.healthPort,
		SyncInterval: f.syncInterval,
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
	if d.host == nil || !d.flags.setupInterface {
		return nil
	}
	return d.host.EnsureAddresses(ctx)
}

func (d *daemon) removeAddresses(ctx context.Context) error {
	if d.host == nil {
		return nil
	}
	var err error
	if d.flags.setupInterface && !d.flags.skipTeardown {
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
	return d.host != nil && d.flags.setupRules && !d.files.sample
}

// ensureAccepts opens host firewalls that drop by default, our own query to
// ourselves included. A failure is told and tried again by the watch: it matters
// only where there is such a firewall.
func (d *daemon) ensureAccepts(ctx context.Context) error {
	if d.host != nil && !d.flags.setupRules {
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
	if !d.wantsRules() || d.flags.skipTeardown {
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
	if !d.wantsRules() || d.flags.skipTeardown {
		return nil
	}
	return d.host.RemoveRules(ctx)
}

// explain adds to an error of serving DNS who is in the way.
func (d *daemon) explain(err error) error {
	return explainPort(err, d.flags.dnsPort, d.flags.localIPs...)
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

// teardown removes all of ours from the host.
func teardown(ctx context.Context, e env) error {
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	return errors.Join(bpf.Teardown(f.redirect.pinDir), netsetup.Teardown(ctx, f.hostConfig()))
}

// status prints what is set up on the host and whether it is as wanted; if it
// is not, it returns errNotAsWanted.
func status(ctx context.Context, e env) error {
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	f.resolve()
	h, err := netsetup.New(f.hostConfig())
	if err != nil {
		return err
	}
	defer h.Close()
	s, err := h.Status(ctx)
	if err != nil {
		return err
	}
	printStatus(e.stdout, f, s)
	redirected, err := redirectStatus(e.stdout, f)
	if err != nil {
		return err
	}
	if !asWanted(f, s) || !redirected {
		return errNotAsWanted
	}
	return nil
}
