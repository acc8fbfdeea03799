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
	w := newWatchers(h)
	g.Go(func() error { w.addrs.loop(ctx, addrsChanged); return nil })
	g.Go(func() error { w.rules.loop(ctx, rulesChanged); return nil })
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

// watcher repairs parts one after the other. Only its loop uses it.
type watcher struct {
	cfg       Config
	metrics   metrics
	parts     []part
	blockedBy map[string]string // object → the other generation, as logged
}

// watchers are those of one Watch. Without its addresses the node has no DNS, so their
// repair does not wait for that of the rules, which may take long.
type watchers struct{ addrs, rules *watcher }

func newWatchers(h *Host) watchers {
	watch := func(parts ...part) *watcher {
		return &watcher{cfg: h.cfg, metrics: h.metrics, parts: parts, blockedBy: make(map[string]string)}
	}
	return watchers{
		addrs: watch(part{owner.Addresses, h.Addresses.repair}),
		rules: watch(part{owner.Rules, h.Rules.repair}, part{owner.Accepts, h.Firewall.Repair}),
	}
}

// loop checks at the start: drift may be older than the subscription.
func (w *watcher) loop(ctx context.Context, changed <-chan struct{}) {
	tick := time.NewTicker(w.cfg.SyncInterval)
	defer tick.Stop()
	limit := newRateLimit(time.Now())
	var retry retry
	for {
		repairs, failed := w.check()
		retry.update(failed)
		pause := time.NewTimer(limit.pause(repairs > 0, time.Now()))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		case <-retry.due:
			retry.due = nil
		}
	}
}

// check repairs the parts. repairs also counts failed repairs.
func (w *watcher) check() (repairs int, failed bool) {
	for _, p := range w.parts {
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

// retry decides when a failed repair is tried again.
type retry struct {
	due   <-chan time.Time // nil: no retry is due
	delay time.Duration    // before due; 0: the last repair did not fail
}

// update follows a check.
func (r *retry) update(failed bool) {
	switch {
	case !failed:
		*r = retry{}
	case r.due == nil:
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
