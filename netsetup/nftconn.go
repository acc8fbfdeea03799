package netsetup

import (
	"bytes"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// nft opens a connection that dials anew for every operation.
func (h *Host) nft() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(h.cfg.NetNS))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return conn, nil
}

func inetTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// addChains queues the chains, hooked ones at priority raw: before connection
// tracking.
func addChains(conn *nftables.Conn, t *nftables.Table, chains []chain) {
	accept := nftables.ChainPolicyAccept
	for _, c := range chains {
		nc := &nftables.Chain{Name: c.name, Table: t}
		if c.hook != nil {
			nc.Hooknum, nc.Priority = c.hook, nftables.ChainPriorityRaw
			nc.Type, nc.Policy = nftables.ChainTypeFilter, &accept
		}
		conn.AddChain(nc)
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: t, Chain: nc, Exprs: r.exprs, UserData: r.userData()})
		}
	}
}

// tableIs reads the table back and compares it with chains. Nothing but these
// may be in it.
func (h *Host) tableIs(name string, chains []chain) (bool, error) {
	table, err := h.readTable(name)
	if err != nil || table.handle == nil || table.flags&nftTableFDormant != 0 {
		return false, err
	}
	have, err := h.chainsOf(name)
	if err != nil || len(have) != len(chains) {
		return false, err
	}
	rules, err := h.dumpRules(name)
	if err != nil {
		return false, err
	}
	for _, want := range chains {
		nc := have[want.name]
		if nc == nil || !sameHook(nc, want.hook) {
			return false, nil
		}
		n := 0
		for n < len(rules) && rules[n].chain == want.name {
			n++
		}
		if same, err := sameRules(rules[:n], want.rules); !same {
			return false, err
		}
		rules = rules[n:]
	}
	return len(rules) == 0, nil
}

// chainsOf returns nothing where the table does not exist.
func (h *Host) chainsOf(table string) (map[string]*nftables.Chain, error) {
	conn, err := h.nft()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	have := make(map[string]*nftables.Chain)
	for _, c := range all {
		if c.Table.Name == table {
			have[c.Name] = c
		}
	}
	return have, nil
}

func sameHook(c *nftables.Chain, hook *nftables.ChainHook) bool {
	if hook == nil || c.Hooknum == nil {
		return hook == nil && c.Hooknum == nil
	}
	return *c.Hooknum == *hook && *c.Priority == *nftables.ChainPriorityRaw &&
		c.Type == nftables.ChainTypeFilter && c.Policy != nil && *c.Policy == nftables.ChainPolicyAccept
}

func sameRules(have []dumpedRule, want []rule) (bool, error) {
	if len(have) != len(want) {
		return false, nil
	}
	for i, w := range want {
		if !bytes.Equal(have[i].userData, w.userData()) || len(have[i].exprs) != len(w.exprs) {
			return false, nil
		}
		for j, e := range w.exprs {
			if same, err := have[i].exprs[j].is(e); !same {
				return false, err
			}
		}
	}
	return true, nil
}

// tableGeneration reads the mark of our table. found is false where the table
// does not exist; generation is empty where it carries no mark.
func (h *Host) tableGeneration() (generation string, found bool, err error) {
	table, err := h.readTable(tableName)
	if err != nil || table.handle == nil {
		return "", false, err
	}
	rules, err := h.dumpRules(tableName)
	if err != nil {
		return "", true, err
	}
	for _, r := range rules {
		comment, _ := userdata.GetString(r.userData, userdata.TypeComment)
		if g, ok := generationOfAlias(comment); ok && r.chain == chainMark {
			return g, true, nil
		}
	}
	return "", true, nil
}
