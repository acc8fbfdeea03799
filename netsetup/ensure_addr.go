package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrAddressElsewhere says that a local IP is already on a link that is not
// ours.
var ErrAddressElsewhere = errors.New("address is on another link")

// EnsureAddresses converges the link and the local IPs to the Config, whatever
// a crash or another generation left, and makes them this generation's. It is
// idempotent. A local IP that the administrator put on lo is used as it is and
// stays theirs. An IPv6 address can be bound at once, but the kernel makes its
// local route in a worker: a query to it may fail for a moment.
func (h *Host) EnsureAddresses(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.mayEnsure(ctx); err != nil {
		return err
	}
	defer h.takeTurn()()
	h.wantAddrs = true
	h.announce(objectAddresses)
	_, err := h.convergeAddresses()
	return err
}

// convergeAddresses reports whether anything had to be changed.
func (h *Host) convergeAddresses() (changed bool, err error) {
	want := h.localIPs
	if len(want) == 0 {
		return false, nil
	}
	if err := h.refuseElsewhere(want); err != nil {
		return false, err
	}
	carrier, changed, err := h.ensureCarrier()
	if err != nil {
		return changed, err
	}
	put, err := h.putMissing(carrier, want)
	changed = changed || put
	if err != nil {
		return changed, err
	}
	dropped, err := h.dropStale(carrier, want)
	return changed || dropped, err
}

// refuseElsewhere fails if a local IP is on a link on which we cannot own it.
// lo is judged in putMissing, for what is allowed there depends on the carrier.
// A link of another name that a process of ours left, which is gone, it removes.
func (h *Host) refuseElsewhere(want []netip.Addr) error {
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	for _, a := range have {
		if !slices.Contains(want, a.prefix.Addr()) {
			continue
		}
		name := h.kernel.linkName(a.link)
		if name == h.cfg.Interface || name == "lo" {
			continue
		}
		gone, err := h.removeOrphan(a.link)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("local IP %s: already on link %s: %w", a.prefix.Addr(), name, ErrAddressElsewhere)
		}
	}
	return nil
}

// putMissing puts every wanted address on the carrier and repairs those that
// are there but wrong.
func (h *Host) putMissing(carrier netlink.Link, want []netip.Addr) (changed bool, err error) {
	have, err := h.kernel.addrs()
	if err != nil {
		return false, err
	}
	isLo := isLoopback(carrier)
	for _, ip := range want {
		present := slices.DeleteFunc(slices.Clone(have), func(a ifAddr) bool { return a.prefix.Addr() != ip })
		if isLo && slices.ContainsFunc(present, foreignOnLo) {
			continue
		}
		if !isLo {
			if i := slices.IndexFunc(present, func(a ifAddr) bool { return a.link != carrier.Attrs().Index && foreignOnLo(a) }); i >= 0 {
				return changed, fmt.Errorf("local IP %s: already on link %s: %w", ip, h.kernel.linkName(present[i].link), ErrAddressElsewhere)
			}
		}
		put, err := h.putOne(carrier, h.wanted(carrier, ip), present)
		changed = changed || put
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// wanted is the address as it shall be on the carrier. IPv6: duplicate address
// detection would delay it, and a prefix route for a /128 has no use.
func (h *Host) wanted(carrier netlink.Link, ip netip.Addr) ifAddr {
	a := ifAddr{prefix: netip.PrefixFrom(ip, ip.BitLen()), link: carrier.Attrs().Index, scope: unix.RT_SCOPE_UNIVERSE}
	if ip.Is6() {
		a.flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	if isLoopback(carrier) {
		a.mark = markOf(h.cfg.Generation)
	}
	return a
}

// putOne puts want on its link unless one of present is it already; what is
// present there in a wrong form is removed first.
func (h *Host) putOne(carrier netlink.Link, want ifAddr, present []ifAddr) (changed bool, err error) {
	for _, a := range present {
		if a.link != want.link {
			continue
		}
		if a.usable() && (a.mark == want.mark || !isLoopback(carrier)) {
			return changed, nil
		}
		if a.usable() { // another generation's: only the mark changes
			h.rememberOnLo(a)
			break
		}
		if err := h.kernel.deleteAddr(a); err != nil {
			return changed, err
		}
		changed = true
	}
	if err := h.kernel.putAddr(want); err != nil {
		return changed, err
	}
	return true, nil
}

// dropStale removes what is ours and not wanted: from the dummy link every
// address but the kernel's own, from lo what carries a mark.
func (h *Host) dropStale(carrier netlink.Link, want []netip.Addr) (changed bool, err error) {
	have, err := h.kernel.addrs()
	if err != nil {
		return false, err
	}
	for _, a := range have {
		onCarrier := a.link == carrier.Attrs().Index
		if onCarrier && slices.Contains(want, a.prefix.Addr()) || !h.owns(a, carrier) {
			continue
		}
		if err := h.kernel.deleteAddr(a); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// owns says whether an address is ours, of whatever generation.
func (h *Host) owns(a ifAddr, carrier netlink.Link) bool {
	if !isLoopback(carrier) && a.link == carrier.Attrs().Index {
		return a.scope != unix.RT_SCOPE_LINK // the kernel's fe80:: address
	}
	return a.link == loIndex && a.mark.ours()
}

// loIndex is the index of lo in every network namespace.
const loIndex = 1

func foreignOnLo(a ifAddr) bool { return a.link == loIndex && !a.mark.ours() }

func isLoopback(l netlink.Link) bool { return l.Attrs().Flags&net.FlagLoopback != 0 }
