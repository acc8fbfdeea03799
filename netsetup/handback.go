package netsetup

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// predecessor is whose marks Ensure… overwrote. If it still runs when this
// generation ends, it gets the set-up back, never without it in between.
type predecessor struct {
	link      string                  // generation of the link; "": none
	linkAddrs []netip.Addr            // what was on the link then
	lo        map[netip.Addr]addrMark // of the addresses on lo
	rules     string                  // generation of the table; "": none
	accepts   string                  // of the accept rules in foreign chains; "": none
}

// rememberLink is called before the link's mark is overwritten.
func (h *Host) rememberLink(l netlink.Link) error {
	generation, ok := generationOfAlias(l.Attrs().Alias)
	if !ok || generation == h.cfg.Generation {
		return nil
	}
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	h.before.link, h.before.linkAddrs = generation, nil
	for _, a := range have {
		if a.link == l.Attrs().Index {
			h.before.linkAddrs = append(h.before.linkAddrs, a.prefix.Addr())
		}
	}
	return nil
}

// rememberOnLo is called before the mark of an address on lo is overwritten.
func (h *Host) rememberOnLo(a ifAddr) {
	if h.before.lo == nil {
		h.before.lo = make(map[netip.Addr]addrMark)
	}
	h.before.lo[a.prefix.Addr()] = a.mark
}

// rememberRules is called before the table's mark is overwritten.
func (h *Host) rememberRules() error {
	generation, _, err := h.tableGeneration()
	if err == nil && generation != "" && generation != h.cfg.Generation {
		h.before.rules = generation
	}
	return err
}

// handedBack gives an object to the generation of mark m, if that is present,
// by write, and says whether it kept it. The receiver may end meanwhile. It
// withdraws before it reads the mark, and here the mark is written before its
// presence is asked again: so at least one of the two sees that nobody is left,
// and removes.
func (h *Host) handedBack(object string, m addrMark, write func() error) (bool, error) {
	if !h.isPresent(object, m) {
		return false, nil
	}
	if err := write(); err != nil {
		return false, err
	}
	return h.isPresent(object, m), nil
}

// releaseLink hands our link back or deletes it.
func (h *Host) releaseLink() error {
	p := h.before
	h.before.link, h.before.linkAddrs = "", nil
	mine := func(alias string) bool { return alias == aliasOf(h.cfg.Generation) }
	if p.link == "" {
		return h.deleteLink(mine)
	}
	l, err := h.findLink()
	if errors.Is(err, ErrForeignLink) {
		return nil
	}
	if err != nil || l == nil || !mine(l.Attrs().Alias) {
		return err
	}
	kept, err := h.handedBack(objectAddresses, markOf(p.link), func() error { return h.restoreLink(l, p) })
	if kept {
		h.log.Info("network setup handed back", "object", objectAddresses, "generation", p.link)
		return nil
	}
	return errors.Join(err, h.deleteLink(func(alias string) bool { return mine(alias) || alias == aliasOf(p.link) }))
}

// restoreLink removes the addresses that this generation added, and writes the
// predecessor's mark. Those that it dropped are for the predecessor's Watch.
func (h *Host) restoreLink(l netlink.Link, p predecessor) error {
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	for _, a := range have {
		ip := a.prefix.Addr()
		if a.link != l.Attrs().Index || !slices.Contains(h.localIPs, ip) || slices.Contains(p.linkAddrs, ip) {
			continue
		}
		if err := h.kernel.deleteAddr(a); err != nil {
			return err
		}
	}
	return h.setAlias(l, p.link)
}

// releaseLo hands each of our addresses on lo back or deletes it.
func (h *Host) releaseLo() error {
	before := h.before.lo
	h.before.lo = nil
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	own := markOf(h.cfg.Generation)
	for _, a := range have {
		if a.link == loIndex && a.mark == own {
			err = errors.Join(err, h.releaseOnLo(a, before[a.prefix.Addr()]))
		}
	}
	return err
}

// releaseOnLo takes the predecessor's mark, 0 where there is none.
func (h *Host) releaseOnLo(a ifAddr, p addrMark) error {
	if p == 0 {
		return h.kernel.deleteAddr(a)
	}
	back := a
	back.mark, back.flags = p, a.flags&(unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	kept, err := h.handedBack(objectAddresses, p, func() error { return h.kernel.putAddr(back) })
	if kept {
		h.log.Info("network setup handed back", "object", objectAddresses, "generation", p.String())
		return nil
	}
	return errors.Join(err, h.kernel.deleteAddr(a))
}

// releaseRules hands our table back or deletes it. What it holds may differ
// from what the predecessor wants; the predecessor's Watch sees to that.
func (h *Host) releaseRules() error {
	p := h.before.rules
	h.before.rules = ""
	mine := func(generation string) bool { return generation != "" && generation == h.cfg.Generation }
	if p == "" {
		return h.deleteTable(mine)
	}
	generation, _, err := h.tableGeneration()
	if err != nil || !mine(generation) {
		return err
	}
	back := h.cfg
	back.Generation = p
	kept, err := h.handedBack(objectRules, markOf(p), func() error {
		return h.replaceTable(back.baseChains(!h.noSocketExpr))
	})
	if kept {
		h.log.Info("network setup handed back", "object", objectRules, "generation", p)
		return nil
	}
	return errors.Join(err, h.deleteTable(func(generation string) bool { return mine(generation) || generation == p }))
}
