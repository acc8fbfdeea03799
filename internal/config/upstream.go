package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// Default ports: RFC 1035, section 4.2, and RFC 7858, section 3.1.
const (
	dnsPort = 53
	tlsPort = 853
)

// parseUpstream reads a TO argument of forward: an address with an optional scheme,
// port and server name, or the path of a resolv.conf.
func parseUpstream(text string) (Upstream, error) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "dns", text
	}
	switch scheme {
	case "dns":
		if !found && isPath(rest) {
			return Upstream{ResolvConf: rest}, nil
		}
		addr, err := parseUpstreamAddr(rest, dnsPort)
		if err != nil {
			err = upstreamFault(text, rest)
		}
		return Upstream{Addr: addr}, err
	case "tls":
		return parseTLSUpstream(text, rest)
	case "https", "https3", "grpc", "quic":
		return Upstream{}, reason("upstream %q: %s:// is not supported, use dns:// or tls://", text, scheme)
	}
	return Upstream{}, reason("upstream %q: unknown scheme %s://", text, scheme)
}

// isPath reports whether text is a path and not a host name. CoreDNS checks whether
// the file exists; here a file in the working directory is written ./NAME.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// parseTLSUpstream reads IP[:PORT][%NAME], IP%NAME[:PORT] and the same with an
// IPv6 address in brackets; rest is text without its scheme.
func parseTLSUpstream(text, rest string) (Upstream, error) {
	u := Upstream{TLS: true}
	addr, name, found := strings.Cut(rest, "%")
	if found {
		if before, port, hasPort := strings.Cut(name, ":"); hasPort {
			name, addr = before, closeBracket(addr)+":"+port
			name = strings.TrimSuffix(name, "]")
		} else if strings.HasSuffix(name, "]") {
			name, addr = strings.TrimSuffix(name, "]"), closeBracket(addr)
		}
		if err := checkServerName(name); err != nil {
			return Upstream{}, reason("upstream %q: %v", text, err)
		}
		u.ServerName = name
	}
	var err error
	if u.Addr, err = parseUpstreamAddr(addr, tlsPort); err != nil {
		return Upstream{}, upstreamFault(text, addr)
	}
	return u, nil
}

func closeBracket(addr string) string {
	if strings.HasPrefix(addr, "[") && !strings.HasSuffix(addr, "]") {
		return addr + "]"
	}
	return addr
}

func parseUpstreamAddr(text string, defaultPort uint16) (netip.AddrPort, error) {
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		return netip.AddrPortFrom(addr, defaultPort), nil
	}
	ap, err := netip.ParseAddrPort(text)
	if err == nil && ap.Port() == 0 {
		err = reason("port 0")
	}
	return ap, err
}

// upstreamFault explains why text, whose address is addr, is not an upstream.
func upstreamFault(text, addr string) error {
	if strings.ContainsAny(text, " \t\n") {
		return reason("upstream %q has several words: quotes or an environment variable make them one argument", text)
	}
	if colon := strings.LastIndexByte(addr, ':'); colon >= 0 {
		host, port := addr[:colon], addr[colon+1:]
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			return reason("upstream %q: port %q is not a number from 1 to 65535", text, port)
		}
	}
	if addr != text {
		return reason("upstream %q: %q is not an IP address", text, addr)
	}
	return reason("upstream %q is not an IP address or the path of a resolv.conf; a path starts with / or ./", text)
}

// checkServerName checks a name or address for the verification of a certificate.
func checkServerName(name string) error {
	if name == "" {
		return reason("the TLS server name is empty")
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return nil
	}
	if _, err := strconv.Atoi(name); err == nil {
		return reason("TLS server name %q is a number", name)
	}
	if _, err := parseName(name); err != nil {
		return reason("TLS server name: %v", err)
	}
	return nil
}
