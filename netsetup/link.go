package netsetup

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// ErrLinkInUse means that a link has the configured name but another type.
var ErrLinkInUse = errors.New("link is not one of nodens")

// link is the dummy link that carries the local IPs. Addresses.mu guards it.
type link struct {
	name, kind string
	generation string
	localIPs   []netip.Addr
	kernel     *kernel
	claim      *owner.Claim // of the addresses
	log        *slog.Logger
	fallback   prometheus.Gauge

	fallbackLogged bool

	// The generation whose mark was overwritten, and the addresses that the link
	// had then. "": none.
	previous      string
	previousAddrs []netip.Addr
}

// ensure returns the link for the local IPs: ours, up and marked, or lo if the
// kernel cannot create ours. changed reports whether it changed the kernel's
// state.
func (d *link) ensure() (l netlink.Link, changed bool, err error) {
	l, err = d.find()
	if err != nil {
		return nil, false, err
	}
	if l == nil {
		if l, err = d.create(); errors.Is(err, errNoDriver) {
			return d.fallBackToLo()
		}
		if err != nil {
			return nil, false, err
		}
		changed = true
	}
	d.fallback.Set(0)
	if !d.marked(l) {
		if err := d.rememberOwner(l); err != nil {
			return l, changed, err
		}
		if err := d.kernel.setAlias(l, owner.Comment(d.generation)); err != nil {
			return l, changed, err
		}
		changed = true
	}
	wasDown, err := d.kernel.bringUp(l)
	return l, changed || wasDown, err
}

// find returns our link, or nil if it does not exist.
func (d *link) find() (netlink.Link, error) {
	l, err := d.kernel.link(d.name)
	if err != nil || l == nil {
		return nil, err
	}
	if l.Type() != d.kind {
		return nil, fmt.Errorf("link %s: type %s, want %s: %w", d.name, l.Type(), d.kind, ErrLinkInUse)
	}
	return l, nil
}

func (d *link) create() (netlink.Link, error) {
	if err := d.kernel.createLink(d.name, d.kind); err != nil {
		return nil, err
	}
	l, err := d.find()
	if err == nil && l == nil {
		err = fmt.Errorf("create link %s: another process deleted it", d.name)
	}
	return l, err
}

// marked reports whether the link carries this generation's mark.
func (d *link) marked(l netlink.Link) bool {
	return l.Attrs().Alias == owner.Comment(d.generation)
}

// fallBackToLo brings lo up and changes nothing else of it. The kernel delivers
// packets to any local address through lo.
func (d *link) fallBackToLo() (netlink.Link, bool, error) {
	d.fallback.Set(1)
	if !d.fallbackLogged {
		d.fallbackLogged = true
		d.log.Warn("kernel has no dummy driver, local IPs go on lo")
	}
	lo, err := d.kernel.link("lo")
	if err == nil && lo == nil {
		err = errors.New("link lo: not found")
	}
	if err != nil {
		return nil, false, err
	}
	changed, err := d.kernel.bringUp(lo)
	return lo, changed, err
}

// rememberOwner must be called before the link's mark is overwritten.
func (d *link) rememberOwner(l netlink.Link) error {
	generation, ok := owner.Generation(l.Attrs().Alias)
	if !ok || generation == d.generation {
		return nil
	}
	have, err := d.kernel.addrs()
	if err != nil {
		return err
	}
	d.previous, d.previousAddrs = generation, nil
	for _, a := range have {
		if a.link == l.Attrs().Index {
			d.previousAddrs = append(d.previousAddrs, a.prefix.Addr())
		}
	}
	return nil
}

// release hands our link back or deletes it.
func (d *link) release() error {
	previous, addrs := d.previous, d.previousAddrs
	d.previous, d.previousAddrs = "", nil
	if previous == "" {
		return d.remove(d.marked)
	}
	l, err := d.find()
	if errors.Is(err, ErrLinkInUse) {
		return nil
	}
	if err != nil || l == nil || !d.marked(l) {
		return err
	}
	kept, err := d.claim.HandBack(owner.MarkOf(previous), func() error { return d.restore(l, previous, addrs) })
	if kept {
		d.log.Info("network setup handed back", "object", owner.Addresses, "generation", previous)
		return nil
	}
	return errors.Join(err, d.remove(func(l netlink.Link) bool {
		return d.marked(l) || l.Attrs().Alias == owner.Comment(previous)
	}))
}

// restore deletes the addresses that this generation added, and writes the mark of
// the previous one. The Watch of the previous one adds the addresses that this one
// deleted.
func (d *link) restore(l netlink.Link, previous string, addrs []netip.Addr) error {
	have, err := d.kernel.addrs()
	if err != nil {
		return err
	}
	for _, a := range have {
		ip := a.prefix.Addr()
		if a.link != l.Attrs().Index || !slices.Contains(d.localIPs, ip) || slices.Contains(addrs, ip) {
			continue
		}
		if err := d.kernel.deleteAddr(a); err != nil {
			return err
		}
	}
	return d.kernel.setAlias(l, owner.Comment(previous))
}

// remove deletes our link and its addresses if mine accepts its mark. A link of
// another type is not ours.
func (d *link) remove(mine func(netlink.Link) bool) error {
	l, err := d.find()
	if errors.Is(err, ErrLinkInUse) {
		return nil
	}
	if err != nil || l == nil || !mine(l) {
		return err
	}
	return d.kernel.deleteLink(l)
}

// removeOrphan deletes the link if it carries the mark of a generation whose
// process has ended. gone reports whether the link no longer exists.
func (d *link) removeOrphan(index int) (gone bool, err error) {
	l, err := d.kernel.links.LinkByIndex(index)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up link #%d: %w", index, err)
	}
	g, marked := owner.Generation(l.Attrs().Alias)
	if !marked || l.Type() != d.kind || d.claim.Claimed(owner.MarkOf(g)) {
		return false, nil
	}
	return true, d.kernel.deleteLink(l)
}

// removeAll deletes our link and every link that carries a mark, whatever its
// name.
func (d *link) removeAll() error {
	err := d.remove(func(netlink.Link) bool { return true })
	links, listErr := dump(d.kernel.links.LinkList)
	if listErr != nil {
		return errors.Join(err, fmt.Errorf("read links: %w", listErr))
	}
	for _, l := range links {
		if _, marked := owner.Generation(l.Attrs().Alias); marked && l.Type() == d.kind {
			err = errors.Join(err, d.kernel.deleteLink(l))
		}
	}
	return err
}

// blocking returns the other generation that owns the link and blocks repairs,
// or "".
func (d *link) blocking() (string, error) {
	l, err := d.kernel.link(d.name)
	if err != nil || l == nil {
		return "", err
	}
	g, _ := owner.Generation(l.Attrs().Alias)
	return d.claim.Blocking(g), nil
}
