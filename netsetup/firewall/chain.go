package firewall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// chain is a base chain of another program that sees the host's own IP traffic.
type chain struct {
	table  nft.TableID
	name   string
	kind   nftables.ChainType
	hook   nftables.ChainHook
	policy outcome
	owned  bool // by a process: no other process can change the table

	rules   []nft.DumpedRule
	outcome outcome  // for a packet that matches no condition
	decides int      // index of the rule that decides outcome; len(rules): the policy does
	excepts bool     // a rule with a condition before that may let pods' packets pass
	reads   []string // the chains that outcome depends on
}

// String is family, table and chain, as in nft's commands.
func (c *chain) String() string { return c.table.String() + " " + c.name }

// ours reports whether a table belongs to any generation of nodens.
func ours(t nft.TableID) bool {
	return t.Family == nftables.TableFamilyINet && (t.Name == "nodens" || strings.HasPrefix(t.Name, "nodens-"))
}

// readChains reads the base chains at prerouting, input and output of every
// table that is not ours, in the kernel's order. The chains of a dormant table
// see no packets and so drop none.
func readChains(client nft.Client) ([]*chain, error) {
	conn, err := client.Dial()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("read nftables chains: %w", err)
	}
	var found []*chain
	tables := make(map[nft.TableID]nft.Table)
	for _, base := range all {
		c := newChain(base)
		if c == nil {
			continue
		}
		table, known := tables[c.table]
		if !known {
			if table, err = client.Table(c.table); err != nil {
				return nil, err
			}
			tables[c.table] = table
		}
		if table.Handle == nil {
			continue
		}
		c.owned = table.Flags&nft.FlagOwner != 0
		if err := c.read(client); err != nil {
			return nil, err
		}
		if table.Flags&nft.FlagDormant != 0 {
			c.outcome = accepts
		}
		found = append(found, c)
	}
	return found, nil
}

// packetHooks are the hooks at which the host's own traffic can be dropped.
var packetHooks = []nftables.ChainHook{*nftables.ChainHookPrerouting, *nftables.ChainHookInput, *nftables.ChainHookOutput}

// newChain returns nil for a chain that cannot drop our traffic. A chain of type nat
// cannot, because the kernel runs it for tracked packets only, and Rules.Ensure
// untracks ours. A service proxy's nat chains may also be very long and change
// often.
func newChain(base *nftables.Chain) *chain {
	id := nft.TableID{Family: base.Table.Family, Name: base.Table.Name}
	if base.Hooknum == nil || !slices.Contains(packetHooks, *base.Hooknum) || nft.FamilyName(id.Family) == "" || ours(id) {
		return nil
	}
	if base.Type == nftables.ChainTypeNAT {
		return nil
	}
	c := &chain{table: id, name: base.Name, kind: base.Type, hook: *base.Hooknum, policy: accepts}
	if base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop {
		c.policy = drops
	}
	return c
}

// read reads the chain's rules and decides whether it drops packets that match
// no condition.
func (c *chain) read(client nft.Client) (err error) {
	if c.rules, err = client.Rules(c.table, c.name); err != nil {
		return err
	}
	w := walk{rules: func(name string) ([]nft.DumpedRule, error) { return client.Rules(c.table, name) }}
	c.outcome, c.decides, err = w.chain(c.rules)
	if c.outcome == undecided {
		c.outcome = c.policy
	}
	c.excepts = w.excepts
	c.reads = append(w.visited, c.name)
	return err
}

// marked returns our rules in the chain, of the generations that mine accepts.
func (c *chain) marked(mine func(generation string) bool) (ours []nft.DumpedRule) {
	for _, r := range c.rules {
		if g, ok := generation(r); ok && mine(g) {
			ours = append(ours, r)
		}
	}
	return ours
}

// generation reads the mark of a rule: a comment as nft stores it or, after
// iptables-restore, as iptables does.
func generation(r nft.DumpedRule) (string, bool) {
	if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
		if g, ok := owner.Generation(comment); ok {
			return g, true
		}
	}
	for _, e := range r.Exprs {
		if e.Name != "match" || nft.CString(nested(e.Data, attrMatchName)) != "comment" {
			continue
		}
		comment, _, _ := bytes.Cut(nested(e.Data, attrMatchInfo), []byte{0})
		if g, ok := owner.Generation(string(comment)); ok {
			return g, true
		}
	}
	return "", false
}

// fit replaces our rules in the chain whose generation mine accepts with want, in
// one transaction. New rules go to the head of the chain. Later, another program may
// put its rules before them. fit does not change c.
func (c *chain) fit(client nft.Client, want []nft.Rule, mine func(generation string) bool) (changed bool, err error) {
	if same, err := nft.SameRules(c.marked(mine), want); same || err != nil {
		return false, err
	}
	at, err := client.RulesetID()
	if err != nil {
		return false, err
	}
	now := *c
	if now.rules, err = client.Rules(c.table, c.name); err != nil {
		return false, err
	}
	if err := c.replace(client, at, now.marked(mine), want); err != nil {
		return false, fmt.Errorf("change accept rules in chain %s: %w", c, err)
	}
	return true, nil
}

// replace puts want at the head of the chain and deletes have if the ruleset has
// number at; otherwise it fails with ERESTART. Rules are deleted by handle, and a
// table that is created again counts handles from the beginning. So a handle that
// was read before may belong to a rule of another program.
func (c *chain) replace(client nft.Client, at uint32, have []nft.DumpedRule, want []nft.Rule) error {
	var msgs []netlink.Message
	for _, r := range slices.Backward(want) { // each goes before the previous one
		m, err := c.insert(r)
		if err != nil {
			return err
		}
		msgs = append(msgs, m)
	}
	for _, r := range have {
		m, err := c.message(unix.NFT_MSG_DELRULE, 0,
			netlink.Attribute{Type: unix.NFTA_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, r.Handle)})
		if err != nil {
			return err
		}
		msgs = append(msgs, m)
	}
	if len(msgs) == 0 {
		return nil
	}
	return client.Commit(at, msgs...)
}

// insert returns the message that puts r at the head of the chain.
func (c *chain) insert(r nft.Rule) (netlink.Message, error) {
	elems := make([]netlink.Attribute, len(r.Exprs))
	for i, e := range r.Exprs {
		b, err := expr.Marshal(byte(c.table.Family), e)
		if err != nil {
			return netlink.Message{}, fmt.Errorf("encode expression: %w", err)
		}
		elems[i] = netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b}
	}
	exprs, err := netlink.MarshalAttributes(elems)
	if err != nil {
		return netlink.Message{}, fmt.Errorf("encode expressions: %w", err)
	}
	return c.message(unix.NFT_MSG_NEWRULE, netlink.Create,
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: exprs},
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: r.UserData()})
}

func (c *chain) message(msgType int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	place := []netlink.Attribute{nft.String(unix.NFTA_RULE_TABLE, c.table.Name), nft.String(unix.NFTA_RULE_CHAIN, c.name)}
	return nft.Message(c.table.Family, msgType, flags, append(place, attrs...)...)
}
