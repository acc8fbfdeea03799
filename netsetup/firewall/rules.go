package firewall

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// wanted decides which rules a chain needs.
type wanted struct {
	localIPs []netip.Addr
	ports    nft.Ports
}

// accepts returns the rules that the chain needs. They accept the local IPs' DNS and
// health traffic with other hosts and pods, and with the node's own processes. The
// node's own traffic passes lo in both directions. Only on lo can a source address
// be trusted. All expressions are known to iptables-nft, so that it can still list
// its tables.
func (w wanted) accepts(c *chain, generation string) []nft.Rule {
	if c.outcome != drops || c.owned || c.kind != nftables.ChainTypeFilter {
		return nil
	}
	var rules []nft.Rule
	for _, ip := range w.localIPs {
		if !carries(c.table.Family, ip) {
			continue
		}
		match := nft.AddrIs
		if c.table.Family == nftables.TableFamilyINet {
			match = func(ip netip.Addr, field nft.AddrField) []expr.Any {
				return append(nft.FamilyIs(ip), nft.AddrIs(ip, field)...)
			}
		}
		to, from := match(ip, nft.AddrDst), match(ip, nft.AddrSrc)
		switch c.hook {
		case *nftables.ChainHookInput:
			rules = append(rules, w.acceptIf(to, nft.PortDst)...)
			rules = append(rules, w.acceptIf(append(from, onLo(expr.MetaKeyIIFNAME)...), nft.PortSrc)...)
		case *nftables.ChainHookOutput:
			rules = append(rules, w.acceptIf(from, nft.PortSrc)...)
			rules = append(rules, w.acceptIf(append(to, onLo(expr.MetaKeyOIFNAME)...), nft.PortDst)...)
		}
	}
	for i := range rules {
		rules[i].Comment = owner.Comment(generation)
	}
	return rules
}

// carries reports whether chains of the family see packets of ip's IP version.
func carries(family nftables.TableFamily, ip netip.Addr) bool {
	switch family {
	case nftables.TableFamilyIPv4:
		return ip.Is4()
	case nftables.TableFamilyIPv6:
		return ip.Is6()
	}
	return true
}

// acceptIf returns a rule per port.
func (w wanted) acceptIf(match []expr.Any, port nft.PortField) []nft.Rule {
	rules := w.ports.Rules(port, append([]expr.Any{&expr.Counter{}}, nft.Verdict(expr.VerdictAccept, "")...)...)
	for i := range rules {
		rules[i].Exprs = append(match[:len(match):len(match)], rules[i].Exprs...)
	}
	return rules
}

// onLo matches packets on lo. key selects the incoming or the outgoing link.
func onLo(key expr.MetaKey) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("lo\x00")},
	}
}
