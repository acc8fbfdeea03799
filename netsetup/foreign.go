package netsetup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// tableID tells tables of all families apart.
type tableID struct {
	family nftables.TableFamily
	name   string
}

func (t tableID) String() string { return familyName(t.family) + " " + t.name }

// ours says whether a table is one of this or another generation of nodens.
func (t tableID) ours() bool {
	return t.family == nftables.TableFamilyINet && (t.name == tableName || strings.HasPrefix(t.name, livePrefix))
}

// familyName is "" for a family whose chains the host's IP traffic does not
// pass.
func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	}
	return ""
}

// foreignChain is a base chain of another table that the host's own IP traffic
// passes.
type foreignChain struct {
	table  tableID
	name   string
	kind   nftables.ChainType
	hook   nftables.ChainHook
	policy fate
	owned  bool // by a process: the kernel lets nobody else change it

	// What foreignChains finds in it.
	rules   []dumpedRule
	fate    fate // of a packet that no rule with a condition takes
	decides int  // index of the rule that decides fate; len(rules): the policy does
	reads   []string
}

// String is family, table and chain, as nft's commands want them.
func (c *foreignChain) String() string { return c.table.String() + " " + c.name }

// foreignChains reads the base chains at prerouting, input and output of every
// table that is not ours, in the kernel's order. Those of a dormant table see
// no packet and so drop none.
func (h *Host) foreignChains() ([]*foreignChain, error) {
	conn, err := h.nft()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("read nftables chains: %w", err)
	}
	var found []*foreignChain
	flags := make(map[tableID]tableInfo)
	for _, c := range all {
		fc := foreignBase(c)
		if fc == nil {
			continue
		}
		info, known := flags[fc.table]
		if !known {
			if info, err = h.readTableOf(fc.table); err != nil {
				return nil, err
			}
			flags[fc.table] = info
		}
		if info.handle == nil {
			continue
		}
		fc.owned = info.flags&nftTableFOwner != 0
		if err := h.readFate(fc); err != nil {
			return nil, err
		}
		if info.flags&nftTableFDormant != 0 {
			fc.fate = passes
		}
		found = append(found, fc)
	}
	return found, nil
}

// packetHooks are where the host's own traffic can be dropped.
var packetHooks = []nftables.ChainHook{*nftables.ChainHookPrerouting, *nftables.ChainHookInput, *nftables.ChainHookOutput}

// foreignBase returns nil for a chain that is not of that kind. Chains of type
// nat are not: the kernel runs them for tracked packets only, which ours are not
// once EnsureRules was called. Those of a service proxy may be very long, too,
// and change all the time.
func foreignBase(c *nftables.Chain) *foreignChain {
	id := tableID{c.Table.Family, c.Table.Name}
	if c.Hooknum == nil || !slices.Contains(packetHooks, *c.Hooknum) || familyName(id.family) == "" || id.ours() {
		return nil
	}
	if c.Type == nftables.ChainTypeNAT {
		return nil
	}
	fc := &foreignChain{table: id, name: c.Name, kind: c.Type, hook: *c.Hooknum, policy: passes}
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		fc.policy = drops
	}
	return fc
}

// readFate reads the chain's rules and finds out whether it drops what none of
// them knows.
func (h *Host) readFate(c *foreignChain) (err error) {
	if c.rules, err = h.dumpRulesOf(c.table, c.name); err != nil {
		return err
	}
	w := walk{chain: c, rules: func(name string) ([]dumpedRule, error) { return h.dumpRulesOf(c.table, name) }}
	c.fate, c.decides, err = w.through(c.rules)
	if c.fate == undecided {
		c.fate = c.policy
	}
	c.reads = append(w.visited, c.name)
	return err
}
