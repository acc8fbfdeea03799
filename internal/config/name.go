package config

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// parseName returns text as a fully qualified name in lower case. The limits
// are those of RFC 1035, section 2.3.4: 63 octets a label, 255 a name.
func parseName(text string) (string, error) {
	name := dns.Fqdn(text)
	if err := checkNameBytes(text); err != nil {
		return "", err
	}
	for _, label := range dns.SplitDomainName(name) {
		if len(label) > 63 && !strings.Contains(label, `\`) {
			return "", reason("name %q has a label of %d octets, at most 63 are allowed", text, len(label))
		}
	}
	escaped := strings.Contains(text, `\`)
	if !escaped && (strings.Contains(name, "..") || len(name) > 1 && name[0] == '.') {
		return "", reason("name %q has an empty label", text)
	}
	wire := make([]byte, 256)
	n, err := dns.PackDomainName(name, wire, 0, nil, false)
	if err != nil || n > 255 {
		if len(name) > 255 {
			return "", reason("name %q… is longer than 255 octets", name[:20])
		}
		return "", reason("%q is not a domain name", text)
	}
	canonical, _, err := dns.UnpackDomainName(wire[:n], 0)
	if err != nil {
		return "", reason("%q is not a domain name", text)
	}
	return strings.ToLower(canonical), nil
}

// checkNameBytes refuses what is sooner a slip of the pen than part of a
// name. Any octet can still be written as \DDD.
func checkNameBytes(text string) error {
	if text == "" {
		return reason("a name is empty; the root is written .")
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\':
			n := escapeLength(text[i:])
			if n == 0 {
				return reason("name %q: a backslash needs three digits up to 255 or a character after it", text)
			}
			i += n - 1
		case c >= 0x80:
			return reason("name %q is not ASCII; write an internationalised name in its xn-- form", text)
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(`.-_*/`, c) >= 0:
		default:
			return reason("name %q contains %q", text, c)
		}
	}
	return nil
}

// escapeLength returns the length of the escape that text starts with, \DDD or
// \X (RFC 1035, section 5.1), or 0 if it is none.
func escapeLength(text string) int {
	switch {
	case len(text) >= 4 && isDigits(text[1:4]) && text[1:4] <= "255":
		return 4
	case len(text) >= 2 && text[1] > ' ' && text[1] < 0x7f && !isDigits(text[1:2]):
		return 2
	}
	return 0
}

// parseZones returns the zones that text stands for: itself, or for a prefix
// such as 10.0.0.0/24 the reverse zones that cover it.
func parseZones(text string) ([]string, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return reverseZones(prefix), nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return nil, reason("%q is an address, not a zone; a reverse zone is written ADDRESS/PREFIX-LENGTH", text)
	}
	zone, err := parseName(text)
	if err != nil {
		return nil, err
	}
	// RFC 2317 puts slashes in names, but only below arpa.
	if strings.Contains(text, "/") && !strings.HasSuffix(zone, ".arpa.") {
		return nil, reason("%q is neither a name nor a prefix such as 10.0.0.0/24", text)
	}
	return []string{zone}, nil
}

// parseZoneList is parseZones over the arguments of s that start at from.
func parseZoneList(s statement, from int) ([]string, error) {
	var zones []string
	for _, arg := range s.args[min(from, len(s.args)):] {
		z, err := parseZones(arg.text)
		if err != nil {
			return nil, s.fail(err)
		}
		zones = append(zones, z...)
	}
	return zones, nil
}

// reverseZones returns the zones under in-addr.arpa or ip6.arpa that cover
// prefix. Between two label boundaries these are several, at most 128.
func reverseZones(prefix netip.Prefix) []string {
	addr := prefix.Masked().Addr()
	raw, labelBits, suffix := addr.AsSlice(), 8, "in-addr.arpa."
	if addr.Is6() {
		labelBits, suffix = 4, "ip6.arpa."
	}
	labels := (prefix.Bits() + labelBits - 1) / labelBits
	count := 1 << (labels*labelBits - prefix.Bits())
	zones := make([]string, count)
	for i := range zones {
		name := suffix
		for l := range labels {
			value := reverseLabel(raw, l, labelBits)
			if l == labels-1 {
				value += i
			}
			name = formatReverseLabel(value, labelBits) + "." + name
		}
		zones[i] = name
	}
	return zones
}

// reverseLabel returns octet i of raw, or its nibble i if labelBits is 4.
func reverseLabel(raw []byte, i, labelBits int) int {
	if labelBits == 8 {
		return int(raw[i])
	}
	return int(raw[i/2]>>(4*(1-i%2))) & 0xf
}

func formatReverseLabel(value, labelBits int) string {
	if labelBits == 8 {
		return strconv.Itoa(value)
	}
	return strconv.FormatInt(int64(value), 16)
}
