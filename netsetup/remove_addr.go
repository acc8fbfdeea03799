package netsetup

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RemoveAddresses removes the link or the addresses on lo if they still carry
// this generation's mark. What a newer generation adopted stays; what this one
// adopted from one that still runs goes back to that, unremoved. It is
// idempotent.
func (h *Host) RemoveAddresses(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if h.cfg.Generation == "" {
		return nil
	}
	defer h.takeTurn()()
	h.wantAddrs = false
	h.metrics.fallbackLo.Set(0)
	h.withdraw(objectAddresses)
	return errors.Join(h.releaseLink(), h.releaseLo())
}

// deleteLink deletes our link, and the addresses with it, if mine accepts its
// alias. A link of another type is not ours.
func (h *Host) deleteLink(mine func(alias string) bool) error {
	l, err := h.findLink()
	if errors.Is(err, ErrForeignLink) {
		return nil
	}
	if err != nil || l == nil || !mine(l.Attrs().Alias) {
		return err
	}
	return h.kernel.deleteLink(l)
}

// removeOrphan deletes the link if it carries the mark of a generation whose
// process is gone. gone says whether there is no such link now.
func (h *Host) removeOrphan(index int) (gone bool, err error) {
	l, err := h.kernel.links.LinkByIndex(index)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up link #%d: %w", index, err)
	}
	g, marked := generationOfAlias(l.Attrs().Alias)
	if !marked || l.Type() != h.cfg.linkType || h.isPresent(objectAddresses, markOf(g)) {
		return false, nil
	}
	return true, h.kernel.deleteLink(l)
}

// deleteMarkedLinks deletes every link that carries a mark, whatever its name.
func (h *Host) deleteMarkedLinks() error {
	links, err := dump(h.kernel.links.LinkList)
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	for _, l := range links {
		if _, marked := generationOfAlias(l.Attrs().Alias); marked && l.Type() == h.cfg.linkType {
			err = errors.Join(err, h.kernel.deleteLink(l))
		}
	}
	return err
}

// deleteLink succeeds where the link is gone already.
func (k *kernel) deleteLink(l netlink.Link) error {
	err := k.links.LinkDel(l)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// deleteFromLo removes the addresses on lo whose mark mine accepts.
func (h *Host) deleteFromLo(mine func(addrMark) bool) error {
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	for _, a := range have {
		if a.link == loIndex && mine(a.mark) {
			err = errors.Join(err, h.kernel.deleteAddr(a))
		}
	}
	return err
}
