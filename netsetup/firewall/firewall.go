// Package firewall lets the local IPs' traffic pass host firewalls that drop. It
// adds accept rules to the chains of other programs: an accept rule in a table
// of nodens would not overrule their drop.
package firewall

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// Config is made by package netsetup.
type Config struct {
	LocalIPs   []netip.Addr
	Ports      nft.Ports
	Owner      owner.Identity
	Registerer prometheus.Registerer // nil: no metrics
}

// Firewall is our accept rules in the chains of other programs. It is safe for
// concurrent use.
type Firewall struct {
	id    owner.Identity
	nft   nft.Client
	drops prometheus.Gauge

	mu       sync.Mutex // serialises changes, and guards:
	want     wanted
	claim    *owner.Claim
	logged   map[string]bool // Drop.What
	previous string          // generation whose marks were overwritten; "": none

	// watched are the chains whose rules decide whether they need ours, per table.
	// Concerns reads it without the lock. nil: not known yet.
	watched atomic.Pointer[map[nft.TableID][]string]
}

// New registers the metrics.
func New(cfg Config) (*Firewall, error) {
	f := &Firewall{
		id: cfg.Owner, want: wanted{localIPs: cfg.LocalIPs, ports: cfg.Ports}, nft: nft.Client{NetNS: cfg.Owner.NetNS}, claim: owner.NewClaim(owner.Accepts, cfg.Owner),
		logged: make(map[string]bool),
		drops: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_netsetup_foreign_drops",
			Help: "Chains of other programs that drop the local IPs' traffic and cannot be given accept rules.",
		}),
	}
	if cfg.Registerer == nil {
		return f, nil
	}
	return f, cfg.Registerer.Register(f.drops)
}

// Ensure adds rules that accept the local IPs' DNS and health traffic. It adds them
// at the head of every chain of other programs that would drop it, and marks them
// with this generation. It removes them from chains that no longer need them. It is
// idempotent. Call it before the daemon queries itself, and Remove after the daemon
// has drained.
//
// It considers base chains of type filter at input or output, of family ip, ip6 or
// inet, including those of iptables-nft. A chain drops if its policy drops or if an
// unconditional rule drops or rejects, also in a chain that it jumps to. Ensure does
// not open the following; Status reports them if it can see them:
//
//   - a chain at prerouting, or of another type;
//   - a table that a process owns (flag owner);
//   - a drop that another program adds before our rules, because it is probably
//     intended;
//   - iptables-legacy, whose tables are no nftables tables.
//
// It neither opens nor reports a conditional drop in a chain that accepts by
// default, families netdev and bridge, and BPF.
func (f *Firewall) Ensure(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.claim.Announce(ctx); err != nil {
		return err
	}
	_, err := f.converge()
	legacy, legacyErr := legacyFilters(f.id.NetNS)
	for _, d := range legacy {
		f.log(d)
	}
	return errors.Join(err, legacyErr)
}

// SetTargets changes the addresses to which sockets are redirected, and the rules if
// they are wanted and no other generation owns them: pods must reach the targets as
// they reach the local IPs.
func (f *Firewall) SetTargets(targets []netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Equal(f.want.targets, targets) {
		return nil
	}
	f.want.targets = slices.Clone(targets)
	_, _, err := f.claim.Repair(f.blocking, f.converge)
	return err
}

// log logs each drop once.
func (f *Firewall) log(d Drop) {
	if !f.logged[d.What] {
		f.logged[d.What] = true
		f.id.Log.Warn("a firewall may drop DNS to the local IPs", "firewall", d.What, "reason", d.Why)
	}
}

// Remove deletes the rules of this generation. If it adopted them from one that
// still runs, it hands them back instead. It is idempotent.
func (f *Firewall) Remove(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	f.claim.Withdraw()
	return f.release()
}

// RemoveOrphaned deletes the rules of generations whose process has ended.
func (f *Firewall) RemoveOrphaned() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rewrite("", func(g string) bool { return !f.claim.Owns(g) && !f.claim.Claimed(owner.MarkOf(g)) })
}

// RemoveAll deletes the rules of every generation.
func (f *Firewall) RemoveAll() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rewrite("", everyGeneration)
}

// Close gives up the claim to the rules and leaves them.
func (f *Firewall) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claim.Withdraw()
}

// Repair converges the rules if they are wanted, unless another generation
// blocks, which it returns.
func (f *Firewall) Repair() (changed bool, other string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claim.Repair(f.blocking, f.converge)
}

// blocking returns the other generation that owns our rules and blocks repairs,
// or "".
func (f *Firewall) blocking() (string, error) {
	chains, err := readChains(f.nft)
	if err != nil {
		return "", err
	}
	return f.claim.Blocking(f.otherOwner(chains)), nil
}

// Concerns accepts notifications that can change whether a chain drops our
// traffic. It may be called at any time.
func (f *Firewall) Concerns(m netlink.Message) bool {
	watched := f.watched.Load()
	if watched == nil || len(m.Data) == 0 {
		return false
	}
	id := nft.TableID{Family: nftables.TableFamily(m.Data[0]), Name: nft.CString(nft.Attribute(m.Data, unix.NFTA_TABLE_NAME))}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE: // perhaps no longer dormant
		return nft.FamilyName(id.Family) != ""
	case unix.NFT_MSG_NEWCHAIN:
		return nft.FamilyName(id.Family) != "" && nft.Attribute(m.Data, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return slices.Contains((*watched)[id], nft.CString(nft.Attribute(m.Data, unix.NFTA_RULE_CHAIN)))
	case unix.NFT_MSG_DELCHAIN:
		return slices.Contains((*watched)[id], nft.CString(nft.Attribute(m.Data, unix.NFTA_CHAIN_NAME)))
	}
	return false
}

// converge gives every chain the rules that it needs, and removes all other rules of
// ours, of any generation. It reports whether it changed anything.
func (f *Firewall) converge() (changed bool, err error) {
	err = retryOutdated(func() error {
		once, err := f.convergeOnce()
		changed = changed || once
		return err
	})
	return changed, err
}

// convergeOnce continues with the other chains if one fails.
func (f *Firewall) convergeOnce() (changed bool, err error) {
	chains, err := f.readWatched()
	if err != nil {
		return false, err
	}
	if g := f.otherOwner(chains); g != "" {
		f.previous = g
	}
	drops := 0
	for _, c := range chains {
		one, fitErr := c.fit(f.nft, f.want.accepts(c, f.id.Generation), everyGeneration)
		changed, err = changed || one, errors.Join(err, fitErr)
		if why := f.want.stillDrops(c); why != "" {
			drops++
			f.log(Drop{"chain " + c.String(), why})
		}
	}
	f.drops.Set(float64(drops))
	return changed, err
}

// readWatched reads the chains and sets watched. If watched changes, it reads again:
// Concerns may have ignored a change of the new chains.
func (f *Firewall) readWatched() (chains []*chain, err error) {
	for range 3 {
		if chains, err = readChains(f.nft); err != nil {
			return nil, err
		}
		watched := make(map[nft.TableID][]string)
		for _, c := range chains {
			watched[c.table] = append(watched[c.table], c.reads...)
		}
		before := f.watched.Swap(&watched)
		if before != nil && maps.EqualFunc(*before, watched, slices.Equal) {
			break
		}
	}
	return chains, nil
}

// release hands our rules back or deletes them.
func (f *Firewall) release() error {
	previous := f.previous
	f.previous = ""
	if previous == "" {
		return f.rewrite("", f.claim.Owns)
	}
	kept, err := f.claim.HandBack(owner.MarkOf(previous), func() error { return f.rewrite(previous, f.claim.Owns) })
	if kept {
		f.id.Log.Info("network setup handed back", "object", owner.Accepts, "generation", previous)
		return nil
	}
	return errors.Join(err, f.rewrite("", func(g string) bool { return f.claim.Owns(g) || g == previous }))
}

// rewrite replaces the rules of the generations that mine accepts with those of
// generation to, or deletes them if to is empty. Rules of to stay.
func (f *Firewall) rewrite(to string, mine func(generation string) bool) error {
	return retryOutdated(func() error {
		chains, err := readChains(f.nft)
		if err != nil {
			return err
		}
		for _, c := range chains {
			if len(c.marked(mine)) == 0 {
				continue
			}
			var want []nft.Rule
			if to != "" && len(c.marked(func(g string) bool { return g == to })) == 0 {
				want = f.want.accepts(c, to)
			}
			_, fitErr := c.fit(f.nft, want, mine)
			err = errors.Join(err, fitErr)
		}
		return err
	})
}

// otherOwner returns the first generation that is not ours and has marked a
// rule, or "".
func (f *Firewall) otherOwner(chains []*chain) string {
	for _, c := range chains {
		for _, r := range c.rules {
			if g, ok := generation(r); ok && !f.claim.Owns(g) {
				return g
			}
		}
	}
	return ""
}

// everyGeneration is a condition on the generation of rules.
func everyGeneration(string) bool { return true }

// retryOutdated repeats change, at most 5 times, if the ruleset changed after
// change had read it.
func retryOutdated(change func() error) (err error) {
	for range 5 {
		if err = change(); !isOutdated(err) {
			break
		}
	}
	return err
}

// isOutdated reports whether a change failed because what it had read has
// changed or no longer exists.
func isOutdated(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERESTART) }
