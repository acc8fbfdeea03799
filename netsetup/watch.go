package netsetup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

const (
	// repairPause follows every check.
	repairPause = 50 * time.Millisecond
	// A failed repair is retried after retryMin. The delay doubles up to retryMax
	// while repairs fail.
	retryMin = time.Second
	retryMax = 15 * time.Second
	// repairBurst is enough for a firewall that reloads in many steps.
	repairBurst = 20
)

// Watch repairs each part for which Ensure was called, until ctx ends. Then it
// returns nil. It acts on the kernel's notifications about our link, our addresses,
// our tables and the chains in other tables that could drop our packets, and checks
// everything each SyncInterval. A repair that fails is logged, counted, passed to
// Config.OnError and retried. Watch fails only if it cannot receive notifications.
// Call it once per Host.
func (h *Host) Watch(ctx context.Context) error {
	addrsChanged, rulesChanged := make(chan struct{}, 1), make(chan struct{}, 1)
	route, err := subscribe(h.cfg.NetNS, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return err
	}
	rules, err := subscribe(h.cfg.NetNS, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return errors.Join(err, route.Close())
	}
	concernsRules := func(m netlink.Message) bool { return h.Rules.concerns(m) || h.Firewall.Concerns(m) }
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return receive(ctx, route, h.Addresses.concerns, addrsChanged) })
	g.Go(func() error { return receive(ctx, rules, concernsRules, rulesChanged) })
	g.Go(func() error {
		newWatcher(h).loop(ctx, addrsChanged, rulesChanged)
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return errors.Join(route.Close(), rules.Close()) // ends receive
	})
	return g.Wait()
}

// subscribe opens a socket that receives the groups' notifications.
func subscribe(netNS, protocol int, groups ...uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(protocol, &netlink.Config{NetNS: netNS})
	if err != nil {
		return nil, fmt.Errorf("watch network setup: open netlink socket: %w", err)
	}
	for _, group := range groups {
		if err := conn.JoinGroup(group); err != nil {
			return nil, errors.Join(fmt.Errorf("watch network setup: join netlink group %d: %w", group, err), conn.Close())
		}
	}
	return conn, nil
}

// receive signals changed if a message concerns us or messages were lost. It
// returns nil once ctx has ended and conn is closed.
func receive(ctx context.Context, conn *netlink.Conn, concerns func(netlink.Message) bool, changed chan<- struct{}) error {
	for {
		msgs, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("watch network setup: %w", err)
		case err != nil || slices.ContainsFunc(msgs, concerns):
			select {
			case changed <- struct{}{}:
			default: // a signal is pending
			}
		}
	}
}

// FollowLinks signals changed after interfaces have changed, until ctx is done. It does not
// block, so changed needs a capacity of at least 1.
func FollowLinks(ctx context.Context, changed chan<- struct{}) error {
	conn, err := subscribe(0, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	return followLinks(ctx, conn, changed)
}

// followLinks closes conn.
func followLinks(ctx context.Context, conn *netlink.Conn, changed chan<- struct{}) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // ends receive
	return receive(ctx, conn, func(netlink.Message) bool { return true }, changed)
}

// part is a part of the network setup. repair converges it if it is wanted,
// unless another generation blocks, which it returns.
type part struct {
	object string
	repair func() (changed bool, other string, err error)
}

// watcher is the state of one Watch. Only its loop uses it.
type watcher struct {
	cfg          Config
	metrics      metrics
	addrs, rules []part
	blockedBy    map[string]string // object → the other generation, as logged
}

func newWatcher(h *Host) *watcher {
	return &watcher{
		cfg: h.cfg, metrics: h.metrics, blockedBy: make(map[string]string),
		addrs: []part{{owner.Addresses, h.Addresses.repair}},
		rules: []part{{owner.Rules, h.Rules.repair}, {owner.Accepts, h.Firewall.Repair}},
	}
}

// loop checks everything at the start: drift may be older than the
// subscription.
func (w *watcher) loop(ctx context.Context, addrsChanged, rulesChanged <-chan struct{}) {
	tick := time.NewTicker(w.cfg.SyncInterval)
	defer tick.Stop()
	limit := newRateLimit(time.Now())
	var retry retry
	addrs, rules := true, true
	for {
		repairs, failed := w.check(addrs, rules)
		retry.update(failed, addrs && rules)
		pause := time.NewTimer(limit.pause(repairs > 0, time.Now()))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		addrs, rules = false, false
		select {
		case <-ctx.Done():
			return
		case <-addrsChanged:
			addrs = true
		case <-rulesChanged:
			rules = true
		case <-tick.C:
			addrs, rules = true, true
		case <-retry.due:
			retry.due = nil
			addrs, rules = true, true
		}
	}
}

// check repairs the selected parts. repairs also counts failed repairs.
func (w *watcher) check(addrs, rules bool) (repairs int, failed bool) {
	var parts []part
	if addrs {
		parts = append(parts, w.addrs...)
	}
	if rules {
		parts = append(parts, w.rules...)
	}
	for _, p := range parts {
		changed, err := w.repair(p)
		failed = failed || err != nil
		if changed || err != nil {
			repairs++
		}
	}
	return repairs, failed
}

// repair logs and counts what p.repair did.
func (w *watcher) repair(p part) (changed bool, err error) {
	changed, other, err := p.repair()
	if err != nil {
		w.metrics.errors.WithLabelValues(p.object).Inc()
		w.cfg.Logger.Error("repair of the network setup failed", "object", p.object, "error", err)
		if w.cfg.OnError != nil {
			w.cfg.OnError(p.object, err)
		}
		return changed, err
	}
	if other != "" && other != w.blockedBy[p.object] {
		w.cfg.Logger.Info("another process owns the network setup now", "object", p.object, "generation", other)
	}
	w.blockedBy[p.object] = other
	if changed {
		w.metrics.repairs.WithLabelValues(p.object).Inc()
		w.cfg.Logger.Warn("network setup had drifted, repaired", "object", p.object)
	}
	return changed, nil
}

// retry decides when everything is checked again after a failed repair.
type retry struct {
	due   <-chan time.Time // nil: no retry is due
	delay time.Duration    // before due; 0: no repair has failed
}

// update follows a check. Only a check of everything ends the retries: a check
// of one part says nothing about the others.
func (r *retry) update(failed, everything bool) {
	switch {
	case !failed && everything:
		*r = retry{}
	case failed && r.due == nil:
		r.delay = min(max(2*r.delay, retryMin), retryMax)
		r.due = time.After(r.delay)
	}
}

// rateLimit limits repairs if two programs undo each other's work, such as Watch and
// another manager of the firewall. It allows repairBurst repairs at once, then one a
// second.
type rateLimit struct {
	tokens float64 // repairs that may follow at once
	at     time.Time
}

func newRateLimit(now time.Time) *rateLimit { return &rateLimit{tokens: repairBurst, at: now} }

// pause returns the pause after a check at now.
func (l *rateLimit) pause(repaired bool, now time.Time) time.Duration {
	l.tokens = min(repairBurst, l.tokens+now.Sub(l.at).Seconds())
	l.at = now
	if repaired {
		l.tokens = max(0, l.tokens-1)
	}
	if l.tokens < 1 {
		return time.Second
	}
	return repairPause
}
