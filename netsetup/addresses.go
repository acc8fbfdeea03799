package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/mdlayher/netlink"
	vishvananda "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// ErrAddressElsewhere means that a local IP is already on a link that is not
// ours.
var ErrAddressElsewhere = errors.New("address is on another link")

// Addresses are the local IPs and the link that carries them. It is safe for
// concurrent use.
type Addresses struct {
	id       owner.Identity
	all      []netip.Addr // loopback addresses included
	localIPs []netip.Addr // those that need setup
	kernel   *kernel

	mu       sync.Mutex // serialises changes, and guards:
	claim    *owner.Claim
	link     *link
	previous map[netip.Addr]owner.Mark // marks that were overwritten, of addresses on lo
}

func newAddresses(c Config, id owner.Identity, k *kernel, m metrics) *Addresses {
	claim := owner.NewClaim(owner.Addresses, id)
	l := &link{
		name: c.Interface, kind: c.linkType, generation: c.Generation, localIPs: c.localIPs(),
		kernel: k, claim: claim, log: id.Log, fallback: m.fallbackLo,
	}
	return &Addresses{
		id: id, all: c.Addrs, localIPs: l.localIPs, kernel: k,
		claim: claim, link: l, previous: make(map[netip.Addr]owner.Mark),
	}
}

// Ensure converges the link and the local IPs to the Config from any state that a
// crash or another generation left. It marks them with this generation. It is
// idempotent. If the administrator put a local IP on lo, it is used as it is and not
// marked. The kernel creates the local route of an IPv6 address a moment after the
// address. A query that arrives before the route may fail.
func (a *Addresses) Ensure(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer owner.Lock(a.id)()
	if err := a.claim.Announce(ctx); err != nil {
		return err
	}
	_, err := a.converge()
	return err
}

// Remove deletes the link or the addresses on lo if they still carry this
// generation's mark. If this generation adopted them from one that still runs,
// it hands them back instead. It is idempotent.
func (a *Addresses) Remove(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.id.Generation == "" {
		return nil
	}
	defer owner.Lock(a.id)()
	a.link.fallback.Set(0)
	a.claim.Withdraw()
	return errors.Join(a.link.release(), a.releaseLo())
}

// removeAll deletes the links and addresses of every generation.
func (a *Addresses) removeAll() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.link.removeAll()
	have, listErr := a.kernel.addrs()
	err = errors.Join(err, listErr)
	for _, have := range have {
		if have.link == loIndex && have.mark.Valid() {
			err = errors.Join(err, a.kernel.deleteAddr(have))
		}
	}
	return err
}

func (a *Addresses) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claim.Withdraw()
}

// repair is called by Watch.
func (a *Addresses) repair() (changed bool, other string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.claim.Wanted() {
		defer owner.Lock(a.id)()
	}
	return a.claim.Repair(a.blocking, a.converge)
}

// blocking returns the mark of another generation that our link or an address on
// lo carries and that blocks repairs, or "".
func (a *Addresses) blocking() (string, error) {
	if g, err := a.link.blocking(); g != "" || err != nil {
		return g, err
	}
	have, err := a.kernel.addrs()
	if err != nil {
		return "", err
	}
	for _, have := range have {
		other := have.link == loIndex && have.mark.Valid() && have.mark != owner.MarkOf(a.id.Generation)
		if other && a.claim.Blocks(have.mark) {
			return have.mark.String(), nil
		}
	}
	return "", nil
}

// concerns accepts notifications about our link, lo or a local IP.
func (a *Addresses) concerns(m netlink.Message) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		name := nft.CString(nft.AttributeAfter(m.Data, unix.SizeofIfInfomsg, unix.IFLA_IFNAME))
		return name == a.link.name || name == "lo"
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		addr, err := parseIfAddr(m.Data)
		return err == nil && slices.Contains(a.localIPs, addr.prefix.Addr())
	}
	return false
}

// converge reports whether it changed anything.
func (a *Addresses) converge() (changed bool, err error) {
	if len(a.localIPs) == 0 {
		return false, nil
	}
	if err := a.refuseElsewhere(); err != nil {
		return false, err
	}
	carrier, changed, err := a.link.ensure()
	if err != nil {
		return changed, err
	}
	put, err := a.putMissing(carrier)
	changed = changed || put
	if err != nil {
		return changed, err
	}
	deleted, err := a.deleteStale(carrier)
	return changed || deleted, err
}

// refuseElsewhere fails if a local IP is on a link other than ours and lo. It
// deletes a link that another process of nodens left under another name. putMissing
// checks lo, because the carrier decides whether lo may have a local IP.
func (a *Addresses) refuseElsewhere() error {
	have, err := a.kernel.addrs()
	if err != nil {
		return err
	}
	for _, have := range have {
		if !slices.Contains(a.localIPs, have.prefix.Addr()) {
			continue
		}
		name := a.kernel.linkName(have.link)
		if name == a.link.name || name == "lo" {
			continue
		}
		gone, err := a.link.removeOrphan(have.link)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("local IP %s: already on link %s: %w", have.prefix.Addr(), name, ErrAddressElsewhere)
		}
	}
	return nil
}

// putMissing puts every local IP on the carrier and repairs wrong ones.
func (a *Addresses) putMissing(carrier vishvananda.Link) (changed bool, err error) {
	have, err := a.kernel.addrs()
	if err != nil {
		return false, err
	}
	for _, ip := range a.localIPs {
		present := slices.DeleteFunc(slices.Clone(have), func(a ifAddr) bool { return a.prefix.Addr() != ip })
		if slices.ContainsFunc(present, unmarkedOnLo) {
			if isLoopback(carrier) {
				continue
			}
			return changed, fmt.Errorf("local IP %s: already on link lo: %w", ip, ErrAddressElsewhere)
		}
		put, err := a.put(wantedAddr(carrier, ip, a.id.Generation), present)
		changed = changed || put
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// wantedAddr is a local IP as it must be on the carrier. For IPv6, duplicate
// address detection would delay it, and a /128 needs no prefix route.
func wantedAddr(carrier vishvananda.Link, ip netip.Addr, generation string) ifAddr {
	a := ifAddr{prefix: netip.PrefixFrom(ip, ip.BitLen()), link: carrier.Attrs().Index, scope: unix.RT_SCOPE_UNIVERSE}
	if ip.Is6() {
		a.flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	if isLoopback(carrier) {
		a.mark = owner.MarkOf(generation)
	}
	return a
}

// put puts want on its link unless present has it. It deletes wrong forms of the
// address first.
func (a *Addresses) put(want ifAddr, present []ifAddr) (changed bool, err error) {
	for _, have := range present {
		if have.link != want.link {
			continue
		}
		if have.usable() && (have.mark == want.mark || want.mark == 0) {
			return changed, nil
		}
		if have.usable() { // it has the mark of another generation: only the mark changes
			a.previous[have.prefix.Addr()] = have.mark
			break
		}
		if err := a.kernel.deleteAddr(have); err != nil {
			return changed, err
		}
		changed = true
	}
	if err := a.kernel.putAddr(want); err != nil {
		return changed, err
	}
	return true, nil
}

// deleteStale deletes our addresses that are not wanted. From the dummy link it
// deletes every address but the kernel's own, from lo the addresses with a mark.
func (a *Addresses) deleteStale(carrier vishvananda.Link) (changed bool, err error) {
	have, err := a.kernel.addrs()
	if err != nil {
		return false, err
	}
	for _, have := range have {
		onCarrier := have.link == carrier.Attrs().Index
		ours := have.link == loIndex && have.mark.Valid()
		if onCarrier && !isLoopback(carrier) {
			ours = have.scope != unix.RT_SCOPE_LINK // the kernel's fe80:: address
		}
		if !ours || onCarrier && slices.Contains(a.localIPs, have.prefix.Addr()) {
			continue
		}
		if err := a.kernel.deleteAddr(have); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// releaseLo hands each of our addresses on lo back or deletes it.
func (a *Addresses) releaseLo() error {
	previous := a.previous
	a.previous = make(map[netip.Addr]owner.Mark)
	have, err := a.kernel.addrs()
	if err != nil {
		return err
	}
	for _, have := range have {
		if have.link == loIndex && have.mark == owner.MarkOf(a.id.Generation) {
			err = errors.Join(err, a.releaseOnLo(have, previous[have.prefix.Addr()]))
		}
	}
	return err
}

// releaseOnLo hands an address back to the process of mark previous; 0: none.
func (a *Addresses) releaseOnLo(have ifAddr, previous owner.Mark) error {
	if previous == 0 {
		return a.kernel.deleteAddr(have)
	}
	back := have
	back.mark, back.flags = previous, have.flags&(unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	kept, err := a.claim.HandBack(previous, func() error { return a.kernel.putAddr(back) })
	if kept {
		a.id.Log.Info("network setup handed back", "object", owner.Addresses, "generation", previous.String())
		return nil
	}
	return errors.Join(err, a.kernel.deleteAddr(have))
}

// unmarkedOnLo reports whether the administrator put a on lo.
func unmarkedOnLo(a ifAddr) bool { return a.link == loIndex && !a.mark.Valid() }
