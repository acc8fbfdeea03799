package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseHostAddrs reads a comma-separated list of addresses of one host, such as
// -localip.
func ParseHostAddrs(s string) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, part := range strings.Split(s, ",") {
		a, err := netip.ParseAddr(part)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is not an IP address; the list has commas and no spaces", part)
		}
		if a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("%q is not the address of a host", part)
		}
		if a.Is6() && a.IsLinkLocalUnicast() {
			return nil, fmt.Errorf("%q is link-local: in IPv6 such an address needs a zone, which differs between hosts", part)
		}
		ips = append(ips, a.Unmap())
	}
	return ips, nil
}
