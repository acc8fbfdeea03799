package kube

import (
	"cmp"
	"net/netip"
	"slices"
)

// endpointSlice has the fields of a discovery.k8s.io/v1 EndpointSlice that we use.
type endpointSlice struct {
	Metadata    meta       `json:"metadata"`
	AddressType string     `json:"addressType"` // IPv4, IPv6 or FQDN
	Endpoints   []endpoint `json:"endpoints"`
	Ports       []port     `json:"ports"`
}

type meta struct {
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
}

type endpoint struct {
	Addresses  []string   `json:"addresses"`
	Conditions conditions `json:"conditions"`
	Zone       string     `json:"zone"`
	Hints      struct {
		ForZones []struct {
			Name string `json:"name"`
		} `json:"forZones"`
	} `json:"hints"`
}

// conditions are nil if unknown.
type conditions struct {
	Ready       *bool `json:"ready"`
	Serving     *bool `json:"serving"`
	Terminating *bool `json:"terminating"`
}

type port struct {
	Name     string `json:"name"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

// ready also returns true if unknown.
func (c conditions) ready() bool { return c.Ready == nil || *c.Ready }

// terminating reports whether the endpoint terminates and still answers.
func (c conditions) terminating() bool {
	return !c.ready() && c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating
}

// dnsPort returns the port of both transports: the UDP port named dns, or else the
// only UDP port. It returns false if TCP has another port, which is not supported.
func (s endpointSlice) dnsPort() (uint16, bool) {
	udp := slices.DeleteFunc(slices.Clone(s.Ports), func(p port) bool { return p.Protocol != "UDP" })
	i := slices.IndexFunc(udp, func(p port) bool { return p.Name == "dns" })
	if i < 0 && len(udp) == 1 {
		i = 0
	}
	if i < 0 || udp[i].Port == 0 {
		return 0, false
	}
	for _, p := range s.Ports {
		if p.Protocol == "TCP" && p.Name == "dns-tcp" && p.Port != udp[i].Port {
			return 0, false
		}
	}
	return udp[i].Port, true
}

// candidate is a server that can be used.
type candidate struct {
	addr  netip.AddrPort
	zone  string
	hints []string
}

// choose returns the servers for a node in zone, those in the zone first. It
// returns the ready servers or, if there are none, the terminating ones. If all
// servers of an address family have hints, and some are for the zone, it returns
// only these of the family. An empty zone has no preference.
func choose(all map[string]endpointSlice, zone string) []netip.AddrPort {
	servers := collect(all, conditions.ready)
	if len(servers) == 0 {
		servers = collect(all, conditions.terminating)
	}
	var v4, v6 []candidate
	for _, s := range servers {
		if s.addr.Addr().Is4() {
			v4 = append(v4, s)
		} else {
			v6 = append(v6, s)
		}
	}
	servers = append(forZone(v4, zone), forZone(v6, zone)...)
	slices.SortFunc(servers, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance(zone), b.distance(zone)), a.addr.Compare(b.addr))
	})
	addrs := make([]netip.AddrPort, len(servers))
	for i, s := range servers {
		addrs[i] = s.addr
	}
	return slices.Compact(addrs)
}

func (c candidate) distance(zone string) int {
	if zone != "" && c.zone == zone {
		return 0
	}
	return 1
}

// forZone leaves out servers whose hints are for other zones.
func forZone(servers []candidate, zone string) []candidate {
	if zone == "" || slices.ContainsFunc(servers, func(c candidate) bool { return len(c.hints) == 0 }) {
		return servers
	}
	ours := slices.DeleteFunc(slices.Clone(servers), func(c candidate) bool { return !slices.Contains(c.hints, zone) })
	if len(ours) == 0 {
		return servers
	}
	return ours
}

// collect returns the addresses of the endpoints whose conditions satisfy has. All
// addresses of an endpoint belong to one pod, and clients use the first.
func collect(all map[string]endpointSlice, has func(conditions) bool) (servers []candidate) {
	for _, s := range all {
		number, ok := s.dnsPort()
		if !ok || s.AddressType != "IPv4" && s.AddressType != "IPv6" {
			continue
		}
		for _, e := range s.Endpoints {
			if !has(e.Conditions) || len(e.Addresses) == 0 {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || ip.Zone() != "" {
				continue
			}
			c := candidate{addr: netip.AddrPortFrom(ip.Unmap(), number), zone: e.Zone}
			for _, h := range e.Hints.ForZones {
				c.hints = append(c.hints, h.Name)
			}
			servers = append(servers, c)
		}
	}
	return servers
}
