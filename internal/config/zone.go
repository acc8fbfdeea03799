package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// parseKey returns the zones of one key of a server block:
// [dns://]ZONE[:PORT], where ZONE is a name or a prefix.
func parseKey(key token) ([]Zone, error) {
	if p := placeholder(key.text); p != "" {
		return nil, key.errorf("placeholder %s was not replaced", p)
	}
	text, err := stripScheme(key.text)
	if err != nil {
		return nil, key.errorf("zone %q: %v", key.text, err)
	}
	if isAddress(text) {
		return nil, key.errorf("zone %q is an address; to listen on an address use bind", key.text)
	}
	name, port, err := splitZonePort(text)
	if err != nil {
		return nil, key.errorf("zone %q: %v", key.text, err)
	}
	names, err := parseZones(name)
	if err != nil {
		return nil, key.errorf("zone: %v", err)
	}
	zones := make([]Zone, len(names))
	for i, n := range names {
		zones[i] = Zone{Name: n, Port: port, Line: key.line}
	}
	return zones, nil
}

func stripScheme(text string) (string, error) {
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case !found:
		return text, nil
	case scheme == "dns":
		return rest, nil
	case scheme == "tls", scheme == "https", scheme == "https3", scheme == "grpc", scheme == "quic":
		return "", reason("nodens does not serve %s://, only plain DNS; upstreams may be tls://", scheme)
	}
	return "", reason("unknown scheme %s://", scheme)
}

func isAddress(text string) bool {
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(text)
	return err == nil
}

// splitZonePort splits off the port, or 0 if there is none. The colons of an IPv6
// prefix come before its slash, the colon of a port comes after.
func splitZonePort(text string) (name string, port uint16, err error) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 || colon < strings.LastIndexByte(text, '/') {
		return text, 0, nil
	}
	name = text[:colon]
	n, err := strconv.ParseUint(text[colon+1:], 10, 16)
	switch {
	case err != nil || n == 0:
		return "", 0, reason("port %q is not a number from 1 to 65535", text[colon+1:])
	case name == "":
		return "", 0, reason("the name is missing; write .%s for the root", text)
	}
	return name, uint16(n), nil
}

// String returns z in the syntax of a Corefile.
func (z Zone) String() string {
	if z.Port == 0 {
		return z.Name
	}
	return z.Name + ":" + strconv.Itoa(int(z.Port))
}
