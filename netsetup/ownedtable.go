package netsetup

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
)

// errNoOwner means that the kernel is older than 5.12.
var errNoOwner = errors.New("kernel lacks nftables tables with an owner")

// ownedTable is table inet nodens-GENERATION. A socket of this process owns it. The
// kernel deletes the table when the socket closes, also when the process dies. No
// other process can change or flush it. Rules.mu guards it.
type ownedTable struct {
	name        string
	nft         nft.Client
	conn        *nftables.Conn // nil: there is no table
	unsupported bool           // by the kernel
}

// converge makes the table have these chains; nil: no table.
func (t *ownedTable) converge(want []chain) (changed bool, err error) {
	if want == nil || t.unsupported {
		return false, t.close()
	}
	if t.conn != nil {
		same, err := tableIs(t.nft, t.name, want)
		if err != nil || same {
			return false, err
		}
		if err := t.close(); err != nil {
			return false, err
		}
	}
	err = t.open(want)
	t.unsupported = errors.Is(err, errNoOwner)
	return err == nil, err
}

// open creates the table in two transactions, an empty one and its content,
// since package nftables cannot set the flag.
func (t *ownedTable) open(chains []chain) error {
	msg, err := nft.Message(nftables.TableFamilyINet, unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl,
		nft.String(unix.NFTA_TABLE_NAME, t.name), nft.Uint32(unix.NFTA_TABLE_FLAGS, nft.FlagOwner))
	if err != nil {
		return fmt.Errorf("create nftables table inet %s: %w", t.name, err)
	}
	var raw *netlink.Conn
	conn, err := t.nft.Dial(nftables.AsLasting(),
		nftables.WithSockOptions(func(c *netlink.Conn) error { raw = c; return nil }))
	if err != nil {
		return err
	}
	if err := nft.Commit(raw, 0, msg); err != nil {
		if isUnsupported(err) {
			err = errNoOwner
		}
		return errors.Join(fmt.Errorf("create nftables table inet %s: %w", t.name, err), conn.CloseLasting())
	}
	addChains(conn, inetTable(t.name), chains)
	if err := conn.Flush(); err != nil {
		return errors.Join(fmt.Errorf("fill nftables table inet %s: %w", t.name, err), conn.CloseLasting())
	}
	t.conn = conn
	return nil
}

// close returns when the kernel has deleted the table.
func (t *ownedTable) close() error {
	if t.conn == nil {
		return nil
	}
	conn := t.conn
	t.conn = nil
	if err := conn.CloseLasting(); err != nil {
		return fmt.Errorf("delete nftables table inet %s: %w", t.name, err)
	}
	return nil
}
