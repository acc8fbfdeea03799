package netsetup

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// live is the socket that owns the table inet nodens-GENERATION. The kernel
// deletes the table when the socket closes, thus when the process dies; no
// other process can change it or flush it away.
type live struct{ conn *nftables.Conn }

// convergeLive makes the owned table where a service address needs one.
func (h *Host) convergeLive() (changed bool, err error) {
	want := h.cfg.liveChains(!h.noSocketExpr)
	if want == nil || h.noOwner {
		return false, h.closeLive()
	}
	if h.live != nil {
		same, err := h.tableIs(h.liveName(), want)
		if err != nil || same {
			return false, err
		}
		if err := h.closeLive(); err != nil {
			return false, err
		}
	}
	h.live, err = h.openLive(want)
	if errors.Is(err, errNoOwner) {
		h.noOwner = true
		h.log.Warn("kernel lacks owned nftables tables, processes of the node reach service addresses through the service proxy only")
		return false, nil
	}
	return err == nil, err
}

func (h *Host) liveName() string { return livePrefix + h.cfg.Generation }

var errNoOwner = errors.New("kernel lacks nftables tables with an owner")

// openLive makes the table in two transactions, an empty one and its content:
// the library cannot set the flag.
func (h *Host) openLive(chains []chain) (*live, error) {
	t := inetTable(h.liveName())
	msg, err := tableMessage(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl,
		netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(t.Name), 0)},
		netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: ownerFlag()})
	if err != nil {
		return nil, fmt.Errorf("create nftables table inet %s: %w", t.Name, err)
	}
	var raw *netlink.Conn
	conn, err := nftables.New(nftables.WithNetNSFd(h.cfg.NetNS), nftables.AsLasting(),
		nftables.WithSockOptions(func(c *netlink.Conn) error { raw = c; return nil }))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	if err := commit(raw, msg); err != nil {
		if isUnsupported(err) {
			err = errNoOwner
		}
		return nil, errors.Join(fmt.Errorf("create nftables table inet %s: %w", t.Name, err), conn.CloseLasting())
	}
	addChains(conn, t, chains)
	if err := conn.Flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("fill nftables table inet %s: %w", t.Name, err), conn.CloseLasting())
	}
	return &live{conn: conn}, nil
}

// closeLive returns when the kernel has deleted the table.
func (h *Host) closeLive() error {
	if h.live == nil {
		return nil
	}
	conn := h.live.conn
	h.live = nil
	if err := conn.CloseLasting(); err != nil {
		return fmt.Errorf("delete nftables table inet %s: %w", h.liveName(), err)
	}
	return nil
}
