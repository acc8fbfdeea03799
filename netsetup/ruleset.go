package netsetup

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// tableName is our table, in family inet. The table that lives as long as its
// process is called livePrefix and the generation.
const (
	tableName  = "nodens"
	livePrefix = tableName + "-"
)

// chain is a chain as we want it. A nil hook makes it a target of jumps.
type chain struct {
	name  string
	hook  *nftables.ChainHook
	rules []rule
}

type rule struct {
	exprs   []expr.Any
	comment string
}

// Chain names. "local" is an address that only this cache serves, "service" one
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

// isService says whether the service proxy may have a rule for ip, so that its
// traffic has somewhere else to go. A link-local address never is a ClusterIP.
func isService(ip netip.Addr) bool { return !ip.IsLinkLocalUnicast() }

// baseChains is the content of the table that outlives its process. Targets
// come before the chains that jump to them. guard: the kernel has the socket
// expression.
func (c Config) baseChains(guard bool) []chain {
	chains := []chain{
		{name: chainMark, rules: []rule{{exprs: verdict(expr.VerdictReturn, ""), comment: aliasOf(c.Generation)}}},
		{name: chainToLocal, rules: c.onPorts(portDst, &expr.Notrack{})},
		{name: chainFromLocal, rules: c.onPorts(portSrc, &expr.Notrack{})},
	}
	if guard {
		chains = append(chains,
			chain{name: chainIfListening, rules: c.ifListening()},
			chain{name: chainToService, rules: c.onPorts(portDst, verdict(expr.VerdictGoto, chainIfListening)...)})
	}
	pre := chain{name: chainPrerouting, hook: nftables.ChainHookPrerouting}
	out := chain{name: chainOutput, hook: nftables.ChainHookOutput}
	for _, ip := range c.localIPs() {
		switch {
		case !isService(ip):
			pre.rules = append(pre.rules, jumpOn(ip, addrDst, chainToLocal))
			out.rules = append(out.rules, jumpOn(ip, addrDst, chainToLocal))
		case guard:
			pre.rules = append(pre.rules, jumpOn(ip, addrDst, chainToService))
		}
		out.rules = append(out.rules, jumpOn(ip, addrSrc, chainFromLocal))
	}
	return append(chains, pre, out)
}

// liveChains is the content of the table that dies with its process: what no
// packet property could make conditional on a listener. It is nil where there
// is no service address.
func (c Config) liveChains(guard bool) []chain {
	target := chain{name: chainToService, rules: c.onPorts(portDst, &expr.Notrack{})}
	pre := chain{name: chainPrerouting, hook: nftables.ChainHookPrerouting}
	out := chain{name: chainOutput, hook: nftables.ChainHookOutput}
	for _, ip := range c.localIPs() {
		if isService(ip) {
			out.rules = append(out.rules, jumpOn(ip, addrDst, chainToService))
		}
	}
	switch {
	case out.rules == nil:
		return nil
	case guard:
		return []chain{target, out}
	default:
		pre.rules = out.rules
		return []chain{target, pre, out}
	}
}

// ifListening untracks a packet that a socket of the daemon takes. The first
// rule leaves alone a foreign listener on the wildcard address. The second one
// matches any other socket, those of a TCP handshake and TIME-WAIT included:
// "transparent" is the one property that the kernel tells of these.
func (c Config) ifListening() []rule {
	ours := rule{exprs: append(socketIs(expr.SocketKeyTransparent, 0), &expr.Notrack{})}
	if c.WildcardListeners {
		return []rule{ours}
	}
	foreign := rule{exprs: append(socketIs(expr.SocketKeyWildcard, 1), verdict(expr.VerdictReturn, "")...)}
	return []rule{foreign, ours}
}

// portField is the offset of a port in a UDP or TCP header.
type portField uint32

const (
	portSrc portField = 0
	portDst portField = 2
)

// onPorts applies then to the DNS port, UDP and TCP, and to the health port.
func (c Config) onPorts(field portField, then ...expr.Any) []rule {
	rules := []rule{
		{exprs: append(portIs(unix.IPPROTO_UDP, field, c.DNSPort), then...)},
		{exprs: append(portIs(unix.IPPROTO_TCP, field, c.DNSPort), then...)},
	}
	if c.HealthPort != 0 {
		rules = append(rules, rule{exprs: append(portIs(unix.IPPROTO_TCP, field, c.HealthPort), then...)})
	}
	return rules
}

func portIs(proto byte, field portField, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: uint32(field), Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(port >> 8), byte(port)}}, // network order
	}
}

// addrField tells the two addresses of an IP header.
type addrField int

const (
	addrSrc addrField = iota
	addrDst
)

// jumpOn jumps to target if the address in the IP header is ip.
func jumpOn(ip netip.Addr, field addrField, target string) rule {
	match := append(familyIs(ip), addrIs(ip, field)...)
	return rule{exprs: append(match, verdict(expr.VerdictJump, target)...)}
}

// socketIs matches a packet for which the kernel finds a socket of that
// property.
func socketIs(key expr.SocketKey, value byte) []expr.Any {
	return []expr.Any{
		&expr.Socket{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{value}},
	}
}

func verdict(kind expr.VerdictKind, target string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: target}}
}

// userData is how nft keeps a comment.
func (r rule) userData() []byte {
	if r.comment == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, r.comment)
}
