package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/nodens-dns/nodens/internal/config"
)

// bindAddrs returns the addresses of the bind directive. It resolves interface names
// to their addresses. Without the directive it returns the wildcard.
func bindAddrs(block *config.Block) ([]netip.Addr, error) {
	if len(block.Bind) == 0 {
		return []netip.Addr{wildcard()}, nil
	}
	var addrs []netip.Addr
	for _, s := range block.Bind {
		if a, err := netip.ParseAddr(s); err == nil {
			addrs = append(addrs, a)
			continue
		}
		found, err := interfaceAddrs(s, block.BindExcept)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, found...)
	}
	return addrs, nil
}

// wildcard returns [::], which also accepts IPv4, or 0.0.0.0 if the kernel has no
// IPv6.
func wildcard() netip.Addr {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func interfaceAddrs(name string, except []string) ([]netip.Addr, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%q is neither an IP address nor an interface of this host", name)
	}
	list, err := ifi.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || contains(except, p.Addr()) {
			continue
		}
		ip := p.Addr()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(name)
		}
		addrs = append(addrs, ip)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("interface %s has no address", name)
	}
	return addrs, nil
}

func contains(list []string, a netip.Addr) bool {
	for _, s := range list {
		if b, err := netip.ParseAddr(s); err == nil && b == a {
			return true
		}
	}
	return false
}
