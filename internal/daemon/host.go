package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/netsetup"
)

// hostSetup keeps the local addresses and the netfilter rules on the host.
type hostSetup struct {
	base
	host      *netsetup.Host // nil: nodens leaves the host alone
	stopWatch func()         // nil: not watching
}

// newHostSetup prepares the set-up that the options require. Loopback addresses need
// no set-up, and the sample needs no netfilter rules.
func newHostSetup(b base, cfg source) (*hostSetup, error) {
	s := &hostSetup{base: b}
	c := b.opts.HostConfig()
	if len(c.Addrs) == 0 || !b.opts.SetupInterface && !b.opts.SetupRules {
		return s, nil
	}
	c.WildcardListeners = listensOnWildcard(cfg)
	c.Generation = rand.Text()
	c.Logger, c.Registerer = b.log, b.registry
	c.OnError = func(object string, _ error) { s.countError(setupErrorType(object)) }
	var err error
	s.host, err = netsetup.New(c)
	return s, err
}

// HostConfig returns the host set-up that the options require.
func (o *Options) HostConfig() netsetup.Config {
	return netsetup.Config{
		Interface:    o.InterfaceName,
		Addrs:        slices.DeleteFunc(slices.Clone(o.LocalIPs), netip.Addr.IsLoopback),
		DNSPort:      o.DNSPort,
		HealthPort:   o.HealthPort,
		SyncInterval: o.SyncInterval,
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

// setupErrorType returns node-cache's name for a failure to set up object.
func setupErrorType(object string) string {
	if object == "rules" || object == "accepts" {
		return "iptables"
	}
	return "interface_check"
}

func (s *hostSetup) countError(errorType string) { s.setupErrors.WithLabelValues(errorType).Inc() }

func (s *hostSetup) ensureAddresses(ctx context.Context) error {
	if s.host == nil || !s.opts.SetupInterface {
		return nil
	}
	return s.host.Addresses.Ensure(ctx)
}

func (s *hostSetup) removeAddresses(ctx context.Context) error {
	if s.host == nil {
		return nil
	}
	var err error
	if s.opts.SetupInterface && !s.opts.SkipTeardown {
		err = s.host.Addresses.Remove(ctx)
	}
	return errors.Join(err, s.host.Close())
}

// setListeners adapts the rules to the addresses that a reload serves.
func (s *hostSetup) setListeners(cfg source) {
	if s.host == nil {
		return
	}
	if err := s.host.Rules.SetWildcardListeners(listensOnWildcard(cfg)); err != nil {
		s.log.Error("adapting the netfilter rules to the Corefile's bind directives failed", "error", err)
		s.countError("iptables")
	}
}

// wantsRules reports whether nodens installs netfilter rules.
func (s *hostSetup) wantsRules() bool {
	return s.host != nil && s.opts.wantsRules()
}

// ensureAccepts lets our traffic pass host firewalls that drop by default, before the
// daemon checks its answers. It logs a failure, and the watch tries again: it
// matters only on hosts with such a firewall.
func (s *hostSetup) ensureAccepts(ctx context.Context) error {
	if s.host != nil && !s.opts.SetupRules {
		if err := s.host.RemoveOrphanedRules(ctx); err != nil {
			s.log.Warn("removing the rules that a crash left behind failed", "error", err)
		}
	}
	if !s.wantsRules() {
		return nil
	}
	if err := s.host.Firewall.Ensure(ctx); err != nil {
		s.log.Error("adding accept rules to other nftables tables failed", "error", err)
		s.countError("iptables")
	}
	return nil
}

// setTargets lets pods reach the targets of plan through host firewalls that drop by
// default, as ensureAccepts does for the local addresses.
func (s *hostSetup) setTargets(plan redirect.Plan) {
	if !s.wantsRules() {
		return
	}
	var targets []netip.AddrPort
	if plan.Wanted() && plan.Err == nil {
		for _, svc := range plan.Services {
			targets = append(targets, svc.Target)
		}
	}
	if err := s.host.Firewall.SetTargets(targets); err != nil {
		s.log.Error("adding accept rules for the targets of redirection failed", "error", err)
		s.countError("iptables")
	}
}

// inputBlocked returns an error if netfilter drops what pods send to the targets.
func (s *hostSetup) inputBlocked() error {
	if !s.wantsRules() {
		return nil
	}
	drop, err := s.host.Firewall.Blocked()
	if err != nil || drop == nil {
		return nil // the watch reports the error
	}
	return fmt.Errorf("%s %s", drop.What, drop.Why)
}

// removeAccepts comes after the drain: until then, answers must pass.
func (s *hostSetup) removeAccepts(ctx context.Context) error {
	if !s.wantsRules() || s.opts.SkipTeardown {
		return nil
	}
	return s.host.Firewall.Remove(ctx)
}

// ensureRules installs the netfilter rules and starts to watch the host. It logs a
// failure, and the watch tries again: without rules DNS works, but the kernel
// tracks its connections.
func (s *hostSetup) ensureRules(ctx context.Context) error {
	if s.host == nil {
		return nil
	}
	if s.wantsRules() {
		if err := s.host.Rules.Ensure(ctx); err != nil {
			s.log.Error("installing the netfilter rules failed", "error", err)
			s.countError("iptables")
		}
	}
	s.stopWatch = background(ctx, func(ctx context.Context) {
		if err := s.host.Watch(ctx); err != nil {
			s.log.Error("changes of the host set-up are no longer repaired", "error", err)
		}
	})
	return nil
}

func (s *hostSetup) removeRules(ctx context.Context) error {
	if s.host == nil {
		return nil
	}
	if s.stopWatch != nil {
		s.stopWatch()
	}
	if !s.wantsRules() || s.opts.SkipTeardown {
		return nil
	}
	return s.host.Rules.Remove(ctx)
}

// explainPort adds to an error of listening the process that holds the port.
func explainPort(err error, port uint16, addrs ...netip.Addr) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	holders, herr := netsetup.PortOwners("/proc", port, addrs...)
	if herr != nil {
		return err
	}
	for _, h := range holders {
		err = fmt.Errorf("%w; used by %v", err, h)
	}
	return err
}
