package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/netsetup"
)

// defaultTargetPort is outside the range of NodePorts (30000–32767) and of
// ephemeral ports. No registered service in common use on nodes has it.
const defaultTargetPort = 20053

// targets assigns one target to each service. Their ports differ, so that a socket
// that queries two services can distinguish the replies.
type targets struct {
	node  func(v6 bool) (netip.Addr, error)
	given []config.RedirectTarget
	used  map[bool]int // number of assigned targets, by "is IPv6"
}

// next returns the target of the service at vip.
func (t *targets) next(vip netip.AddrPort) (netip.AddrPort, error) {
	v6 := vip.Addr().Is6()
	addr, port := t.lookup(v6)
	if !addr.IsValid() {
		var err error
		if addr, err = t.node(v6); err != nil {
			return netip.AddrPort{}, err
		}
	}
	n := int(port) + t.used[v6]
	t.used[v6]++
	if n > 65535 {
		return netip.AddrPort{}, fmt.Errorf("no port is left after %d for further services", port)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}

// lookup returns the given address and port of a family, or an invalid address
// and the default port. A port of the family precedes a port without address.
func (t *targets) lookup(v6 bool) (addr netip.Addr, port uint16) {
	for _, g := range t.given {
		if g.Addr.IsValid() && g.Addr.Is6() == v6 {
			addr = g.Addr
			if g.Port != 0 {
				port = g.Port
			}
		}
		if !g.Addr.IsValid() && port == 0 {
			port = g.Port
		}
	}
	if port == 0 {
		port = defaultTargetPort
	}
	return addr, port
}

var errNodeAddress = errors.New("the node's address is not known, set -node-ip")

// nodeAddress returns the node's address from -node-ip, else from the
// environment, else the source address of the default route. Without any it
// fails with errNodeAddress.
func (in Input) nodeAddress(v6 bool) (netip.Addr, error) {
	ofFamily := func(a netip.Addr) bool { return a.Is6() == v6 }
	if i := slices.IndexFunc(in.NodeIPs, ofFamily); i >= 0 {
		return in.NodeIPs[i], nil
	}
	for _, name := range []string{"NODE_IP", "HOST_IP"} {
		text := in.Getenv(name)
		if text == "" {
			continue
		}
		list, err := config.ParseHostAddrs(text)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("environment variable %s: %w", name, err)
		}
		if i := slices.IndexFunc(list, ofFamily); i >= 0 {
			return list[i], nil
		}
	}
	a, err := netsetup.SourceAddress(v6)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errNodeAddress, err)
	}
	return a, nil
}
