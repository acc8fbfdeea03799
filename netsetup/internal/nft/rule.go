package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Rule is a wanted rule.
type Rule struct {
	Exprs   []expr.Any
	Comment string
}

// UserData is the comment as nft stores it.
func (r Rule) UserData() []byte {
	if r.Comment == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, r.Comment)
}

// PortField is the offset of a port in a UDP or TCP header.
type PortField uint32

// The two ports.
const (
	PortSrc PortField = 0
	PortDst PortField = 2
)

// Ports are the daemon's ports.
type Ports struct {
	DNS    uint16 // UDP and TCP
	Health uint16 // TCP; 0: none
}

// Rules returns one rule per port. The rule runs the expressions then on packets of
// that port.
func (p Ports) Rules(field PortField, then ...expr.Any) []Rule {
	rules := []Rule{
		{Exprs: append(PortIs(unix.IPPROTO_UDP, field, p.DNS), then...)},
		{Exprs: append(PortIs(unix.IPPROTO_TCP, field, p.DNS), then...)},
	}
	if p.Health != 0 {
		rules = append(rules, Rule{Exprs: append(PortIs(unix.IPPROTO_TCP, field, p.Health), then...)})
	}
	return rules
}

// PortIs matches packets of a protocol and port.
func PortIs(proto byte, field PortField, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: uint32(field), Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(port >> 8), byte(port)}}, // network order
	}
}

// AddrField selects an address of an IP header.
type AddrField int

// The two addresses.
const (
	AddrSrc AddrField = iota
	AddrDst
)

// AddrIs matches an address of the IP header. The packet must be of ip's IP
// version: see FamilyIs.
func AddrIs(ip netip.Addr, field AddrField) []expr.Any {
	offset, size := uint32(12), uint32(4)
	if ip.Is6() {
		offset, size = 8, 16
	}
	if field == AddrDst {
		offset += size
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ip.AsSlice()},
	}
}

// FamilyIs matches packets of ip's IP version.
func FamilyIs(ip netip.Addr) []expr.Any {
	family := byte(unix.NFPROTO_IPV4)
	if ip.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
}

// Verdict ends a rule. target is the chain of a jump or goto.
func Verdict(kind expr.VerdictKind, target string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: target}}
}
