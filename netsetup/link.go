package netsetup

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrForeignLink says that a link of the wanted name is not one we may use.
var ErrForeignLink = errors.New("link belongs to someone else")

// errNoDriver says that the kernel cannot create the link type.
var errNoDriver = errors.New("kernel has no driver for the link type")

// ensureCarrier returns the link that is to carry the local IPs: ours, up and
// marked, or lo where the kernel cannot create ours. changed says whether the
// kernel's state was altered.
func (h *Host) ensureCarrier() (l netlink.Link, changed bool, err error) {
	l, err = h.findLink()
	if err != nil {
		return nil, false, err
	}
	if l == nil {
		if l, err = h.createLink(); errors.Is(err, errNoDriver) {
			return h.fallbackToLo()
		}
		if err != nil {
			return nil, false, err
		}
		changed = true
	}
	h.metrics.fallbackLo.Set(0)
	adjusted, err := h.adjustLink(l)
	return l, changed || adjusted, err
}

// findLink returns our link, or nil where there is none.
func (h *Host) findLink() (netlink.Link, error) {
	l, err := h.kernel.link(h.cfg.Interface)
	if err != nil || l == nil {
		return nil, err
	}
	if l.Type() != h.cfg.linkType {
		return nil, fmt.Errorf("link %s: type %s, want %s: %w", h.cfg.Interface, l.Type(), h.cfg.linkType, ErrForeignLink)
	}
	return l, nil
}

func (h *Host) createLink() (netlink.Link, error) {
	name := h.cfg.Interface
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := h.kernel.links.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: h.cfg.linkType})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("create link %s: type %s: %w", name, h.cfg.linkType, errNoDriver)
	case err != nil && !errors.Is(err, unix.EEXIST): // EEXIST: another process was first; findLink judges its work
		return nil, fmt.Errorf("create link %s: %w", name, err)
	}
	l, err := h.findLink()
	if err == nil && l == nil {
		err = fmt.Errorf("create link %s: gone again", name)
	}
	return l, err
}

// adjustLink marks the link as this generation's and brings it up.
func (h *Host) adjustLink(l netlink.Link) (changed bool, err error) {
	attrs := l.Attrs()
	if attrs.Alias != aliasOf(h.cfg.Generation) {
		if err := h.rememberLink(l); err != nil {
			return false, err
		}
		if err := h.setAlias(l, h.cfg.Generation); err != nil {
			return false, err
		}
		changed = true
	}
	if !isUp(l) {
		if err := h.kernel.links.LinkSetUp(l); err != nil {
			return changed, fmt.Errorf("bring link %s up: %w", attrs.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// setAlias marks the link as a generation's.
func (h *Host) setAlias(l netlink.Link, generation string) error {
	if err := h.kernel.links.LinkSetAlias(l, aliasOf(generation)); err != nil {
		return fmt.Errorf("set alias of link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// fallbackToLo never changes lo itself except to bring it up: a packet to any
// local address is delivered through it.
func (h *Host) fallbackToLo() (netlink.Link, bool, error) {
	h.metrics.fallbackLo.Set(1)
	if !h.saidLo {
		h.saidLo = true
		h.log.Warn("kernel has no dummy driver, local IPs go on lo")
	}
	lo, err := h.kernel.link("lo")
	if err != nil {
		return nil, false, err
	}
	if lo == nil {
		return nil, false, errors.New("link lo: not found")
	}
	if isUp(lo) {
		return lo, false, nil
	}
	if err := h.kernel.links.LinkSetUp(lo); err != nil {
		return nil, false, fmt.Errorf("bring link lo up: %w", err)
	}
	return lo, true, nil
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }
