package netsetup

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// acceptRules lets the local IPs' DNS and health traffic through a foreign
// chain of that family and hook: from others to a local IP and back, and from
// the node's own processes and back. The latter passes lo in either direction,
// and only there a source address proves anything. The expressions are those
// that iptables-nft knows, so that it can still list its table.
func (c Config) acceptRules(family nftables.TableFamily, hook nftables.ChainHook) []rule {
	var rules []rule
	for _, ip := range c.localIPs() {
		if !carries(family, ip) {
			continue
		}
		switch hook {
		case *nftables.ChainHookInput:
			rules = append(rules, c.acceptOn(family, ip, addrDst, portDst, 0)...)
			rules = append(rules, c.acceptOn(family, ip, addrSrc, portSrc, expr.MetaKeyIIFNAME)...)
		case *nftables.ChainHookOutput:
			rules = append(rules, c.acceptOn(family, ip, addrSrc, portSrc, 0)...)
			rules = append(rules, c.acceptOn(family, ip, addrDst, portDst, expr.MetaKeyOIFNAME)...)
		}
	}
	return rules
}

// carries says whether chains of the family see packets of ip's.
func carries(family nftables.TableFamily, ip netip.Addr) bool {
	switch family {
	case nftables.TableFamilyIPv4:
		return ip.Is4()
	case nftables.TableFamilyIPv6:
		return ip.Is6()
	}
	return true
}

// acceptOn is a rule per port. link, unless 0, is the key of the link's name,
// which then must be lo.
func (c Config) acceptOn(family nftables.TableFamily, ip netip.Addr, addr addrField, port portField, link expr.MetaKey) []rule {
	rules := c.onPorts(port, append([]expr.Any{&expr.Counter{}}, verdict(expr.VerdictAccept, "")...)...)
	for i := range rules {
		var match []expr.Any
		if family == nftables.TableFamilyINet {
			match = familyIs(ip)
		}
		match = append(match, addrIs(ip, addr)...)
		if link != 0 {
			match = append(match, &expr.Meta{Key: link, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("lo\x00")})
		}
		rules[i].exprs = append(match, rules[i].exprs...)
		rules[i].comment = aliasOf(c.Generation)
	}
	return rules
}

// familyIs matches the IP version of ip.
func familyIs(ip netip.Addr) []expr.Any {
	family := byte(unix.NFPROTO_IPV4)
	if ip.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
}

// addrIs matches an address of the IP header; the packet must be of ip's
// version.
func addrIs(ip netip.Addr, field addrField) []expr.Any {
	offset, size := uint32(12), uint32(4)
	if ip.Is6() {
		offset, size = 8, 16
	}
	if field == addrDst {
		offset += size
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ip.AsSlice()},
	}
}
