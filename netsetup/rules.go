package netsetup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// EnsureRules converges the netfilter rules and makes them this generation's.
// It is idempotent, needs no iptables and no lock.
//
// Table inet nodens, replaced in one transaction, exempts the DNS port (UDP and
// TCP) and the health port (TCP) of the local IPs from connection tracking, and
// with it from every NAT: queries in prerouting and output, replies in output.
// (A reply to a process of the node passes prerouting on lo untracked already.)
//
// # Service addresses
//
// A local IP that is not link-local may be the ClusterIP of the cluster's DNS,
// for which the service proxy has a DNAT rule of its own; untracked packets do
// not get there. What is guaranteed for such an address:
//
//   - From pods (prerouting): a packet is untracked only if the kernel finds a
//     socket bound to the address that takes it. From the moment the daemon's
//     sockets close, however it died, packets go the service proxy's way.
//   - From the node's own processes (output): no rule can see the receiver, for
//     there the kernel takes the sender's socket. So these rules are in a second
//     table, inet nodens-GENERATION, which the kernel deletes when the process
//     that made it dies (flag owner, kernel ≥ 5.12). Older kernels get no such
//     rules: processes of the node use the service proxy.
//   - A kernel without the socket expression gets the prerouting rules in the
//     second table, too.
//
// Not guaranteed: a daemon that hangs keeps its sockets, and its packets; call
// RemoveRules when a self-query fails. TCP connections that the service proxy
// already carries when the rules appear are reset. While the address is still
// on the link, the DNAT-ed queries of the node's processes carry it as source:
// the service proxy must masquerade them, as kube-proxy does for sources
// outside the pods' range. A query to another port of a service address is
// never touched.
//
// For a link-local address nothing else answers, so its rules are unconditional
// and stay when the process dies.
//
// # Other tables
//
// There is no accept rule here, since it would have no effect: accept ends only
// the chain that says it, and a later chain of another table can still drop. See
// EnsureAccepts.
func (h *Host) EnsureRules(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.mayEnsure(ctx); err != nil {
		return err
	}
	h.wantRules = true
	h.announce(objectRules)
	_, err := h.convergeRules()
	return err
}

// SetWildcardListeners changes Config.WildcardListeners, and the rules if they
// are wanted and no other generation has them. It is for after the daemon has
// opened other sockets.
func (h *Host) SetWildcardListeners(wildcard bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cfg.WildcardListeners == wildcard {
		return nil
	}
	h.cfg.WildcardListeners = wildcard
	if !h.wantRules {
		return nil
	}
	other, err := h.rulesAdoptedBy()
	if other != "" || err != nil {
		return err
	}
	_, err = h.convergeRules()
	return err
}

// convergeRules reports whether anything had to be changed.
func (h *Host) convergeRules() (changed bool, err error) {
	if len(h.localIPs) == 0 {
		return false, nil
	}
	changed, err = h.convergeBase()
	if err != nil {
		return changed, err
	}
	live, err := h.convergeLive()
	return changed || live, err
}

func (h *Host) convergeBase() (changed bool, err error) {
	same, err := h.tableIs(tableName, h.cfg.baseChains(!h.noSocketExpr))
	if err != nil || same {
		return false, err
	}
	if err := h.rememberRules(); err != nil {
		return false, err
	}
	err = h.replaceTable(h.cfg.baseChains(!h.noSocketExpr))
	if !h.noSocketExpr && isUnsupported(err) {
		if err = h.replaceTable(h.cfg.baseChains(false)); err == nil {
			h.noSocketExpr = true
			h.log.Warn("kernel lacks the nftables socket expression, service addresses rely on the owned table")
		}
	}
	return err == nil, err
}

// isUnsupported says whether the kernel does not know an expression, a key of
// it or a table flag.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// replaceTable deletes and makes the table anew in one transaction, so that no
// packet sees it half done and nothing of an older version survives.
func (h *Host) replaceTable(chains []chain) error {
	conn, err := h.nft()
	if err != nil {
		return err
	}
	t := inetTable(tableName)
	conn.AddTable(t) // so that the deletion finds it
	conn.DelTable(t)
	conn.AddTable(t)
	addChains(conn, t, chains)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("replace nftables table inet %s: %w", tableName, err)
	}
	return nil
}

// RemoveRules removes the rules unless another generation has adopted them, or
// this one has adopted them from one that still runs: that gets them back. It is
// idempotent.
func (h *Host) RemoveRules(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	h.wantRules = false
	h.withdraw(objectRules)
	return errors.Join(h.closeLive(), h.releaseRules())
}

// RemoveOrphanedRules removes the rules and accept rules of generations whose
// process is gone. It is for a process that wants none itself.
func (h *Host) RemoveOrphanedRules(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	orphaned := func(object string) func(string) bool {
		return func(g string) bool {
			return g != "" && g != h.cfg.Generation && !h.isPresent(object, markOf(g))
		}
	}
	return errors.Join(h.deleteTable(orphaned(objectRules)), h.rewriteAccepts("", orphaned(objectAccepts)))
}

// deleteTable deletes our table if mine accepts its generation. It does so by
// handle: a table that another process put in its place meanwhile stays.
func (h *Host) deleteTable(mine func(generation string) bool) error {
	table, err := h.readTable(tableName)
	if err != nil || table.handle == nil {
		return err
	}
	generation, found, err := h.tableGeneration()
	if err != nil || !found || !mine(generation) {
		return err
	}
	msg, err := tableMessage(unix.NFT_MSG_DELTABLE, 0, netlink.Attribute{Type: nftaTableHandle, Data: table.handle})
	if err != nil {
		return fmt.Errorf("delete nftables table inet %s: %w", tableName, err)
	}
	err = h.withNetfilter(func(c *netlink.Conn) error { return commit(c, msg) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table inet %s: %w", tableName, err)
	}
	return nil
}

// tableInfo is a table as the kernel has it.
type tableInfo struct {
	handle []byte // value of NFTA_TABLE_HANDLE, network order; nil where there is no such table
	flags  uint32
}

func (h *Host) readTable(name string) (tableInfo, error) {
	return h.readTableOf(tableID{nftables.TableFamilyINet, name})
}

// readTableOf is readTable for any family.
func (h *Host) readTableOf(id tableID) (info tableInfo, err error) {
	msg, err := familyMessage(id.family, unix.NFT_MSG_GETTABLE, 0,
		netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(id.name), 0)})
	if err != nil {
		return info, fmt.Errorf("read nftables table %s: %w", id, err)
	}
	err = h.withNetfilter(func(c *netlink.Conn) error {
		replies, err := c.Execute(msg)
		if err != nil {
			return err
		}
		for _, r := range replies {
			info.handle = attribute(r.Data, nftaTableHandle)
			if b := attribute(r.Data, unix.NFTA_TABLE_FLAGS); len(b) == 4 {
				info.flags = binary.BigEndian.Uint32(b)
			}
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return tableInfo{}, nil
	}
	if err != nil {
		return info, fmt.Errorf("read nftables table %s: %w", id, err)
	}
	return info, nil
}

// From linux/netfilter/nf_tables.h; package unix lacks them.
const (
	nftaTableHandle  = 4 // NFTA_TABLE_HANDLE: u64
	nftTableFDormant = 1 // NFT_TABLE_F_DORMANT: the chains are not hooked
	nftTableFOwner   = 2 // NFT_TABLE_F_OWNER
)

// ownerFlag is a value of NFTA_TABLE_FLAGS.
func ownerFlag() []byte { return binary.BigEndian.AppendUint32(nil, nftTableFOwner) }
