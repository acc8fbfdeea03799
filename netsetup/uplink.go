package netsetup

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplink is an interface that receives packets from other hosts.
type Uplink struct {
	Name  string
	Index int
}

// Uplinks returns the uplinks of the calling thread's network namespace. These are
// interfaces of default routes in the main table, hardware devices, tunnels, and
// bridges and bonds that have one of these as a port. The host's ends of pods' links
// and their bridges are no uplinks. If named is not empty, Uplinks returns those of
// them that exist.
func Uplinks(named []string) ([]Uplink, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	routed, err := defaultRouteLinks()
	if err != nil {
		return nil, err
	}
	is := make(map[int]bool)
	for _, l := range links {
		a := l.Attrs()
		if len(named) > 0 {
			is[a.Index] = slices.Contains(named, a.Name)
			continue
		}
		is[a.Index] = routed[a.Index] || isOutward(l)
	}
	if len(named) == 0 {
		markMasters(links, is)
	}
	var uplinks []Uplink
	for _, l := range links {
		if is[l.Attrs().Index] {
			uplinks = append(uplinks, Uplink{l.Attrs().Name, l.Attrs().Index})
		}
	}
	return uplinks, nil
}

// isOutward reports whether interfaces of this kind always lead to other hosts.
// A hardware device has kind "device".
func isOutward(l netlink.Link) bool {
	if isLoopback(l) {
		return false
	}
	switch l.Type() {
	case "device", "vlan", "vxlan", "geneve", "ipip", "ip6tnl", "sit", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "wireguard", "tuntap", "xfrm", "bareudp":
		return true
	}
	return false
}

// markMasters adds bridges, bonds and the like that have an uplink as a port.
func markMasters(links []netlink.Link, is map[int]bool) {
	for changed := true; changed; {
		changed = false
		for _, l := range links {
			a := l.Attrs()
			if m := a.MasterIndex; m > 0 && is[a.Index] && !is[m] {
				is[m], changed = true, true
			}
		}
	}
}

// defaultRouteLinks reads the main table only: in other tables, CNIs have
// default routes to their own interfaces.
func defaultRouteLinks() (map[int]bool, error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	links := make(map[int]bool)
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		if r.LinkIndex > 0 {
			links[r.LinkIndex] = true
		}
		for _, hop := range r.MultiPath {
			links[hop.LinkIndex] = true
		}
	}
	return links, nil
}

// SourceAddress returns the source address of the host's default route.
func SourceAddress(v6 bool) (netip.Addr, error) {
	family, to := "IPv4", net.IPv4(192, 0, 2, 1) // RFC 5737: documentation
	if v6 {
		family, to = "IPv6", net.ParseIP("2001:db8::1") // RFC 3849: documentation
	}
	routes, err := netlink.RouteGet(to)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no default route for %s: %w", family, err)
	}
	for _, r := range routes {
		if a, ok := netip.AddrFromSlice(r.Src); ok && !a.IsUnspecified() {
			return a.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the default route for %s has no source address", family)
}
