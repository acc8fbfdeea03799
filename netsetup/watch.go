package netsetup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// repairPause follows every check.
	repairPause = 50 * time.Millisecond
	// retryAfter is how long after a failed repair the next one is due, at first;
	// it doubles up to retryAtMost while repairs fail.
	retryAfter  = time.Second
	retryAtMost = 15 * time.Second
)

// Watch repairs what EnsureAddresses, EnsureAccepts and EnsureRules were called
// for until ctx ends, then returns nil. It acts on the kernel's notifications about our link,
// our addresses, our tables and the chains of others that could drop our
// traffic, and checks everything each SyncInterval. A
// repair that fails is logged, counted, told to Config.OnError and repeated.
// Watch fails only if the notifications cannot be had. One Watch per Host.
func (h *Host) Watch(ctx context.Context) error {
	addrDirty, rulesDirty := make(chan struct{}, 1), make(chan struct{}, 1)
	route, err := h.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return err
	}
	rules, err := h.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return errors.Join(err, route.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return receive(ctx, route, h.concernsAddresses, addrDirty) })
	g.Go(func() error { return receive(ctx, rules, h.concernsRules, rulesDirty) })
	g.Go(func() error { return h.repairLoop(ctx, addrDirty, rulesDirty) })
	g.Go(func() error {
		<-ctx.Done()
		return errors.Join(route.Close(), rules.Close()) // ends receive
	})
	return g.Wait()
}

// subscribe opens a socket that receives the groups' notifications.
func (h *Host) subscribe(protocol int, groups ...uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(protocol, &netlink.Config{NetNS: h.cfg.NetNS})
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

// receive signals dirty for every message that concerns us, and when messages
// were lost. It returns nil once ctx has ended and conn is closed.
func receive(ctx context.Context, conn *netlink.Conn, concerns func(netlink.Message) bool, dirty chan<- struct{}) error {
	for {
		msgs, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			signal(dirty)
		case err != nil:
			return fmt.Errorf("watch network setup: %w", err)
		case slices.ContainsFunc(msgs, concerns):
			signal(dirty)
		}
	}
}

// signal leaves at most one signal pending.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// concernsAddresses accepts messages about our link, lo or a local IP.
func (h *Host) concernsAddresses(m netlink.Message) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		name := cString(attributeAfter(m.Data, unix.SizeofIfInfomsg, unix.IFLA_IFNAME))
		return name == h.cfg.Interface || name == "lo"
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, err := parseIfAddr(m.Data)
		return err == nil && slices.Contains(h.localIPs, a.prefix.Addr())
	}
	return false
}

// concernsRules accepts messages about our tables: in those about tables,
// chains, rules and sets alike, attribute 1 names the table. Of other tables it
// accepts what can change whether a chain drops our traffic.
func (h *Host) concernsRules(m netlink.Message) bool {
	name := cString(attribute(m.Data, unix.NFTA_TABLE_NAME))
	return name == tableName || name == h.liveName() || h.concernsAccepts(name, m)
}

func (h *Host) concernsAccepts(table string, m netlink.Message) bool {
	followed := h.followed.Load()
	if followed == nil || len(m.Data) == 0 {
		return false
	}
	id := tableID{nftables.TableFamily(m.Data[0]), table}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE: // perhaps no longer dormant
		return familyName(id.family) != ""
	case unix.NFT_MSG_NEWCHAIN:
		return familyName(id.family) != "" && attribute(m.Data, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return slices.Contains((*followed)[id], cString(attribute(m.Data, unix.NFTA_RULE_CHAIN)))
	case unix.NFT_MSG_DELCHAIN:
		return slices.Contains((*followed)[id], cString(attribute(m.Data, unix.NFTA_CHAIN_NAME)))
	}
	return false
}

// repairLoop checks once at the start: drift may be older than the
// subscription.
func (h *Host) repairLoop(ctx context.Context, addrDirty, rulesDirty <-chan struct{}) error {
	tick := time.NewTicker(h.cfg.SyncInterval)
	defer tick.Stop()
	pace := newPace(time.Now())
	var retry retry
	addrs, rules := true, true
	for {
		before := h.repairs.Load()
		failed := h.repair(addrs, rules)
		retry.after(failed, addrs && rules)
		if !pause(ctx, pace.after(h.repairs.Load() != before, time.Now())) {
			return nil
		}
		addrs, rules = false, false
		select {
		case <-ctx.Done():
			return nil
		case <-addrDirty:
			addrs = true
		case <-rulesDirty:
			rules = true
		case <-tick.C:
			addrs, rules = true, true
		case <-retry.due:
			retry.due = nil
			addrs, rules = true, true
		}
	}
}

// retry is when everything is to be checked again because a repair failed.
type retry struct {
	due   <-chan time.Time // nil: not
	delay time.Duration    // before due; 0: none has failed
}

// after a check: one of everything that found all well ends the matter, one of
// a part says nothing of the other.
func (r *retry) after(failed, everything bool) {
	switch {
	case !failed && everything:
		*r = retry{}
	case failed && r.due == nil:
		r.delay = min(max(2*r.delay, retryAfter), retryAtMost)
		r.due = time.After(r.delay)
	}
}

// pause returns false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// repair converges what was asked for and is still wanted.
func (h *Host) repair(addrs, rules bool) (failed bool) {
	if addrs {
		failed = h.repairOne(objectAddresses, &h.wantAddrs, h.addressesAdoptedBy, h.convergeAddresses)
	}
	if rules {
		failed = h.repairOne(objectRules, &h.wantRules, h.rulesAdoptedBy, h.convergeRules) || failed
		failed = h.repairOne(objectAccepts, &h.wantAccepts, h.acceptsAdoptedBy, h.convergeAccepts) || failed
	}
	return failed
}

// repairOne converges unless another generation has the object and still runs,
// which adoptedBy names.
func (h *Host) repairOne(object string, wanted *bool, adoptedBy func() (string, error), converge func() (bool, error)) (failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !*wanted {
		return false
	}
	if object == objectAddresses {
		defer h.takeTurn()()
	}
	other, err := adoptedBy()
	if other != "" && err == nil {
		h.sayAdopted(object, other)
		return false
	}
	changed := false
	if err == nil {
		delete(h.adopted, object)
		changed, err = converge()
	}
	if err != nil || changed {
		h.repairs.Add(1)
	}
	if err != nil {
		h.metrics.errors.WithLabelValues(object).Inc()
		h.log.Error("repair of the network setup failed", "object", object, "err", err)
		if h.cfg.OnError != nil {
			h.cfg.OnError(object, err)
		}
		return true
	}
	if changed {
		h.metrics.repairs.WithLabelValues(object).Inc()
		h.log.Warn("network setup had drifted, repaired", "object", object)
	}
	return false
}

// sayAdopted logs once per change of hands.
func (h *Host) sayAdopted(object, other string) {
	if h.adopted[object] == other {
		return
	}
	h.adopted[object] = other
	h.log.Info("another process keeps the network setup now", "object", object, "generation", other)
}

// addressesAdoptedBy returns the mark of the other generation that our link or
// an address on lo carries, or "".
func (h *Host) addressesAdoptedBy() (string, error) {
	l, err := h.kernel.link(h.cfg.Interface)
	if err != nil {
		return "", err
	}
	if l != nil {
		g, ok := generationOfAlias(l.Attrs().Alias)
		if ok && g != h.cfg.Generation && h.holds(objectAddresses, markOf(g)) {
			return g, nil
		}
	}
	have, err := h.kernel.addrs()
	if err != nil {
		return "", err
	}
	for _, a := range have {
		other := a.link == loIndex && a.mark.ours() && a.mark != markOf(h.cfg.Generation)
		if other && h.holds(objectAddresses, a.mark) {
			return a.mark.String(), nil
		}
	}
	return "", nil
}

func (h *Host) rulesAdoptedBy() (string, error) {
	g, _, err := h.tableGeneration()
	if g == h.cfg.Generation {
		g = ""
	}
	return h.heldBy(objectRules, g), err
}

// attributeAfter finds an attribute behind a header of that many bytes; nil
// where it is missing.
func attributeAfter(data []byte, header int, want uint16) []byte {
	if len(data) < header {
		return nil
	}
	attrs, err := netlink.UnmarshalAttributes(data[header:])
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if attrType(a) == want {
			return a.Data
		}
	}
	return nil
}
