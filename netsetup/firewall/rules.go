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
	targets  []netip.AddrPort // of redirection
}

// place is an address and the ports that clients reach there.
type place struct {
	ip    netip.Addr
	ports nft.Ports
}

// places returns the local IPs first.
func (w wanted) places() []place {
	var all []place
	for _, ip := range w.localIPs {
		all = append(all, place{ip, w.ports})
	}
	for _, t := range w.targets {
		all = append(all, place{t.Addr(), nft.Ports{DNS: t.Port()}})
	}
	return all
}

// accepts returns the rules that the chain needs. They accept the DNS and health
// traffic of all places with other hosts and pods, and with the node's own processes. The
// node's own traffic passes lo in both directions. Only on lo can a source address
// be trusted. All expressions are known to iptables-nft, so that it can still list
// its tables.
func (w wanted) accepts(c *chain, generation string) []nft.Rule {
	if c.outcome != drops || c.owned || c.kind != nftables.ChainTypeFilter {
		return nil
	}
	var rules []nft.Rule
	for _, p := range w.places() {
		if !carries(c.table.Family, p.ip) {
			continue
		}
		match := nft.AddrIs
		if c.table.Family == nftables.TableFamilyINet {
			match = func(ip netip.Addr, field nft.AddrField) []expr.Any {
				return append(nft.FamilyIs(ip), nft.AddrIs(ip, field)...)
			}
		}
		to, from := match(p.ip, nft.AddrDst), match(p.ip, nft.AddrSrc)
		switch c.hook {
		case *nftables.ChainHookInput:
			rules = append(rules, p.acceptIf(to, nft.PortDst)...)
			rules = append(rules, p.acceptIf(append(from, onLo(expr.MetaKeyIIFNAME)...), nft.PortSrc)...)
		case *nftables.ChainHookOutput:
			rules = append(rules, p.acceptIf(from, nft.PortSrc)...)
			rules = append(rules, p.acceptIf(append(to, onLo(expr.MetaKeyOIFNAME)...), nft.PortDst)...)
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
func (p place) acceptIf(match []expr.Any, port nft.PortField) []nft.Rule {
	rules := p.ports.Rules(port, append([]expr.Any{&expr.Counter{}}, nft.Verdict(expr.VerdictAccept, "")...)...)
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
