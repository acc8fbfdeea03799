package netsetup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// Rules are the netfilter rules in tables of nodens. It is safe for concurrent
// use.
type Rules struct {
	id  owner.Identity
	nft nft.Client

	mu       sync.Mutex // serialises changes, and guards:
	claim    *owner.Claim
	want     ruleset
	owned    *ownedTable
	previous string // generation whose mark was overwritten; "": none
}

func newRules(c Config, id owner.Identity) *Rules {
	client := nft.Client{NetNS: c.NetNS}
	return &Rules{
		id: id, nft: client, claim: owner.NewClaim(owner.Rules, id), want: c.ruleset(),
		owned: &ownedTable{name: ownedPrefix + c.Generation, nft: client, unsupported: c.noOwner},
	}
}

// Ensure converges the netfilter rules and marks them with this generation. It
// is idempotent, needs no iptables and no lock.
//
// Table inet nodens is replaced in one transaction. It exempts the DNS port (UDP and
// TCP) and the health port (TCP) of the local IPs from connection tracking, and so
// from every NAT. It handles queries in prerouting and output, replies in output. A
// reply to a process of the node is untracked already when it passes prerouting on
// lo.
//
// # Service addresses
//
// A local IP that is not link-local may be the ClusterIP of the cluster's DNS.
// The service proxy has a DNAT rule for it, which untracked packets do not
// reach. Guarantees for such an address:
//
//   - From pods (prerouting): a packet is untracked only if the kernel finds a
//     socket bound to the address that receives it. When the daemon's sockets
//     close for any reason, packets reach the service proxy at once.
//   - From the node's own processes (output): no rule can match the receiver,
//     because the kernel takes the sender's socket there. So these rules are in
//     a second table, inet nodens-GENERATION, which the kernel deletes when the
//     process that created it dies (flag owner, kernel ≥ 5.12). Older kernels
//     get no such rules: processes of the node use the service proxy.
//   - A kernel without the socket expression gets the prerouting rules in the
//     second table, too.
//
// Not guaranteed: a daemon that hangs keeps its sockets and its packets; call Remove
// when a self-query fails. TCP connections through the service proxy are reset when
// the rules appear. While the address is still on the link, DNAT-ed queries of the
// node's processes have it as source. The service proxy must masquerade them, as
// kube-proxy does for sources outside the pods' range. A query to another port of a
// service address is never touched.
//
// No other process answers for a link-local address, so its rules are
// unconditional and stay when the process dies.
//
// # Other tables
//
// The table has no accept rules: accept ends only its own chain, and a later
// chain of another table can still drop. See package firewall.
func (r *Rules) Ensure(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.claim.Announce(ctx); err != nil {
		return err
	}
	_, err := r.converge()
	return err
}

// SetWildcardListeners changes Config.WildcardListeners, and the rules if they
// are wanted and no other generation owns them. Call it after the daemon has
// opened other sockets.
func (r *Rules) SetWildcardListeners(wildcard bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.want.wildcard == wildcard {
		return nil
	}
	r.want.wildcard = wildcard
	_, _, err := r.claim.Repair(r.blocking, r.converge)
	return err
}

// Remove deletes the rules unless another generation has adopted them. If this
// one adopted them from one that still runs, it hands them back instead. It is
// idempotent.
func (r *Rules) Remove(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	r.claim.Withdraw()
	return errors.Join(r.owned.close(), r.release())
}

// removeOrphaned deletes the table of a generation whose process has ended.
func (r *Rules) removeOrphaned() error {
	return r.deleteTable(func(g string) bool {
		return g != "" && !r.claim.Owns(g) && !r.claim.Claimed(owner.MarkOf(g))
	})
}

// removeAll deletes the table of any generation. It fails if running processes
// have owned tables.
func (r *Rules) removeAll() error {
	err := r.deleteTable(func(string) bool { return true })
	names, listErr := ownedTables(r.nft)
	err = errors.Join(err, listErr)
	for _, name := range names {
		err = errors.Join(err, fmt.Errorf("delete nftables table inet %s: %w", name, ErrStillRunning))
	}
	return err
}

// close deletes the owned table and leaves the other one.
func (r *Rules) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claim.Withdraw()
	return r.owned.close()
}

// repair is called by Watch.
func (r *Rules) repair() (changed bool, other string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claim.Repair(r.blocking, r.converge)
}

// blocking returns the other generation that owns the table and blocks repairs,
// or "".
func (r *Rules) blocking() (string, error) {
	g, _, err := tableGeneration(r.nft)
	if err != nil {
		return "", err
	}
	return r.claim.Blocking(g), nil
}

// concerns accepts notifications about our tables: in all messages about tables,
// chains, rules and sets, attribute 1 is the name of the table.
func (r *Rules) concerns(m netlink.Message) bool {
	name := nft.CString(nft.Attribute(m.Data, unix.NFTA_TABLE_NAME))
	return name == tableName || name == r.owned.name
}

// converge reports whether it changed anything.
func (r *Rules) converge() (changed bool, err error) {
	if len(r.want.localIPs) == 0 {
		return false, nil
	}
	changed, err = r.convergeBase()
	if err != nil {
		return changed, err
	}
	owned, err := r.owned.converge(r.want.owned())
	if errors.Is(err, errNoOwner) {
		r.id.Log.Warn("kernel lacks owned nftables tables, processes of the node reach service addresses through the service proxy only")
		return changed, nil
	}
	return changed || owned, err
}

func (r *Rules) convergeBase() (changed bool, err error) {
	same, err := tableIs(r.nft, tableName, r.want.base())
	if err != nil || same {
		return false, err
	}
	generation, _, err := tableGeneration(r.nft)
	if err != nil {
		return false, err
	}
	if generation != "" && !r.claim.Owns(generation) {
		r.previous = generation
	}
	err = r.replaceTable(r.want.base())
	if r.want.socketExpr && isUnsupported(err) {
		older := r.want
		older.socketExpr = false
		if err = r.replaceTable(older.base()); err == nil {
			r.want = older
			r.id.Log.Warn("kernel lacks the nftables socket expression, service addresses rely on the owned table")
		}
	}
	return err == nil, err
}

// isUnsupported reports whether the kernel lacks an expression, a key of it or a
// table flag.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// replaceTable deletes and creates the table in one transaction. So no packet passes
// an incomplete table, and nothing of an older version remains.
func (r *Rules) replaceTable(chains []chain) error {
	conn, err := r.nft.Dial()
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

// release hands our table back or deletes it. If the previous generation wants
// other rules, its Watch repairs them.
func (r *Rules) release() error {
	previous := r.previous
	r.previous = ""
	if previous == "" {
		return r.deleteTable(r.claim.Owns)
	}
	generation, _, err := tableGeneration(r.nft)
	if err != nil || !r.claim.Owns(generation) {
		return err
	}
	back := r.want
	back.generation = previous
	kept, err := r.claim.HandBack(owner.MarkOf(previous), func() error { return r.replaceTable(back.base()) })
	if kept {
		r.id.Log.Info("network setup handed back", "object", owner.Rules, "generation", previous)
		return nil
	}
	return errors.Join(err, r.deleteTable(func(g string) bool { return r.claim.Owns(g) || g == previous }))
}

// deleteTable deletes our table if mine accepts its generation. It deletes by
// handle: if another process replaces the table meanwhile, the new one stays.
func (r *Rules) deleteTable(mine func(generation string) bool) error {
	table, err := r.nft.Table(nft.Inet(tableName))
	if err != nil || table.Handle == nil {
		return err
	}
	generation, found, err := tableGeneration(r.nft)
	if err != nil || !found || !mine(generation) {
		return err
	}
	msg, err := nft.Message(nftables.TableFamilyINet, unix.NFT_MSG_DELTABLE, 0, netlink.Attribute{Type: nft.AttrTableHandle, Data: table.Handle})
	if err == nil {
		err = r.nft.Commit(0, msg)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table inet %s: %w", tableName, err)
	}
	return nil
}

// ownedTables returns the names of the owned tables of every generation.
func ownedTables(client nft.Client) (names []string, err error) {
	conn, err := client.Dial()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("read nftables tables: %w", err)
	}
	for _, t := range tables {
		if strings.HasPrefix(t.Name, ownedPrefix) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}
