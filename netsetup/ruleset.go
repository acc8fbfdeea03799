package netsetup

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// tableName is our table, in family inet. An owned table is named ownedPrefix
// and the generation.
const (
	tableName   = "nodens"
	ownedPrefix = tableName + "-"
)

// chain is a wanted chain. With a nil hook it is a target of jumps.
type chain struct {
	name  string
	hook  *nftables.ChainHook
	rules []nft.Rule
}

// Names of chains. "local" is an address that only nodens serves, "service" one
// that the service proxy serves as well.
const (
	chainMark        = "generation"
	chainToLocal     = "to_local"
	chainFromLocal   = "from_local"
	chainToService   = "to_service"
	chainIfListening = "if_listening"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
)

// ruleset decides what our tables contain.
type ruleset struct {
	generation string
	localIPs   []netip.Addr
	ports      nft.Ports
	wildcard   bool // see Config.WildcardListeners
	socketExpr bool // the kernel has the nftables socket expression
}

// isService reports whether the service proxy may have a rule that sends packets for
// ip elsewhere. A link-local address is no ClusterIP.
func isService(ip netip.Addr) bool { return !ip.IsLinkLocalUnicast() }

// base is the content of the table that outlives its process. Targets come
// before the chains that jump to them.
func (s ruleset) base() []chain {
	chains := []chain{
		{name: chainMark, rules: []nft.Rule{{Exprs: nft.Verdict(expr.VerdictReturn, ""), Comment: owner.Comment(s.generation)}}},
		{name: chainToLocal, rules: s.ports.Rules(nft.PortDst, &expr.Notrack{})},
		{name: chainFromLocal, rules: s.ports.Rules(nft.PortSrc, &expr.Notrack{})},
	}
	if s.socketExpr {
		chains = append(chains,
			chain{name: chainIfListening, rules: s.ifListening()},
			chain{name: chainToService, rules: s.ports.Rules(nft.PortDst, nft.Verdict(expr.VerdictGoto, chainIfListening)...)})
	}
	pre := chain{name: chainPrerouting, hook: nftables.ChainHookPrerouting}
	out := chain{name: chainOutput, hook: nftables.ChainHookOutput}
	for _, ip := range s.localIPs {
		switch {
		case !isService(ip):
			pre.rules = append(pre.rules, jumpOn(ip, nft.AddrDst, chainToLocal))
			out.rules = append(out.rules, jumpOn(ip, nft.AddrDst, chainToLocal))
		case s.socketExpr:
			pre.rules = append(pre.rules, jumpOn(ip, nft.AddrDst, chainToService))
		}
		out.rules = append(out.rules, jumpOn(ip, nft.AddrSrc, chainFromLocal))
	}
	return append(chains, pre, out)
}

// owned is the content of the owned table: the rules that cannot match whether a
// socket receives the packet. It is nil without a service address.
func (s ruleset) owned() []chain {
	target := chain{name: chainToService, rules: s.ports.Rules(nft.PortDst, &expr.Notrack{})}
	pre := chain{name: chainPrerouting, hook: nftables.ChainHookPrerouting}
	out := chain{name: chainOutput, hook: nftables.ChainHookOutput}
	for _, ip := range s.localIPs {
		if isService(ip) {
			out.rules = append(out.rules, jumpOn(ip, nft.AddrDst, chainToService))
		}
	}
	switch {
	case out.rules == nil:
		return nil
	case s.socketExpr:
		return []chain{target, out}
	default:
		pre.rules = out.rules
		return []chain{target, pre, out}
	}
}

// ifListening untracks packets that a socket of the daemon receives. The first rule
// excludes other listeners on the wildcard address. The second one matches any other
// socket, also during a TCP handshake and in TIME-WAIT. In those states
// "transparent" is the only property that the kernel reports.
func (s ruleset) ifListening() []nft.Rule {
	ours := nft.Rule{Exprs: append(socketIs(expr.SocketKeyTransparent, 0), &expr.Notrack{})}
	if s.wildcard {
		return []nft.Rule{ours}
	}
	other := nft.Rule{Exprs: append(socketIs(expr.SocketKeyWildcard, 1), nft.Verdict(expr.VerdictReturn, "")...)}
	return []nft.Rule{other, ours}
}

// jumpOn jumps to target if the address in the IP header is ip.
func jumpOn(ip netip.Addr, field nft.AddrField, target string) nft.Rule {
	match := append(nft.FamilyIs(ip), nft.AddrIs(ip, field)...)
	return nft.Rule{Exprs: append(match, nft.Verdict(expr.VerdictJump, target)...)}
}

// socketIs matches packets for which the kernel finds a socket with that
// property.
func socketIs(key expr.SocketKey, value byte) []expr.Any {
	return []expr.Any{
		&expr.Socket{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{value}},
	}
}

func inetTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// addChains queues the chains. Chains with a hook have priority raw, before
// connection tracking.
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
			conn.AddRule(&nftables.Rule{Table: t, Chain: nc, Exprs: r.Exprs, UserData: r.UserData()})
		}
	}
}

// tableIs reads the table and reports whether it has these chains and no others.
func tableIs(client nft.Client, name string, chains []chain) (bool, error) {
	table, err := client.Table(nft.Inet(name))
	if err != nil || table.Handle == nil || table.Flags&nft.FlagDormant != 0 {
		return false, err
	}
	have, err := chainsOf(client, name)
	if err != nil || len(have) != len(chains) {
		return false, err
	}
	rules, err := client.Rules(nft.Inet(name), "")
	if err != nil {
		return false, err
	}
	for _, want := range chains {
		nc := have[want.name]
		if nc == nil || !sameHook(nc, want.hook) {
			return false, nil
		}
		n := 0
		for n < len(rules) && rules[n].Chain == want.name {
			n++
		}
		if same, err := nft.SameRules(rules[:n], want.rules); !same {
			return false, err
		}
		rules = rules[n:]
	}
	return len(rules) == 0, nil
}

// chainsOf returns no chains if the table does not exist.
func chainsOf(client nft.Client, table string) (map[string]*nftables.Chain, error) {
	conn, err := client.Dial()
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

// tableGeneration reads the mark of our table: "" if it has none. found reports
// whether the table exists.
func tableGeneration(client nft.Client) (generation string, found bool, err error) {
	table, err := client.Table(nft.Inet(tableName))
	if err != nil || table.Handle == nil {
		return "", false, err
	}
	rules, err := client.Rules(nft.Inet(tableName), chainMark)
	for _, r := range rules {
		comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
		if g, ok := owner.Generation(comment); ok {
			return g, true, nil
		}
	}
	return "", true, err
}
