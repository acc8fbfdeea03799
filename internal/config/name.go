package config

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// parseName returns text as a fully qualified name in lower case. A label has at
// most 63 octets, a name at most 255 (RFC 1035, section 2.3.4).
func parseName(text string) (string, error) {
	name := dns.Fqdn(text)
	if err := checkNameBytes(text); err != nil {
		return "", err
	}
	for _, label := range dns.SplitDomainName(name) {
		if len(label) > 63 && !strings.Contains(label, `\`) {
			return "", reason("name %q has a label of %d bytes, the maximum is 63", text, len(label))
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
			return "", reason("name %q… is longer than 255 bytes", name[:20])
		}
		return "", reason("%q is not a domain name", text)
	}
	canonical, _, err := dns.UnpackDomainName(wire[:n], 0)
	if err != nil {
		return "", reason("%q is not a domain name", text)
	}
	return strings.ToLower(canonical), nil
}

// checkNameBytes refuses characters that are probably typing errors. Any octet can
// still be written as \DDD.
func checkNameBytes(text string) error {
	if text == "" {
		return reason("a name is empty; write . for the root")
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\':
			n := escapeLength(text[i:])
			if n == 0 {
				return reason("name %q: a backslash must be followed by three digits up to 255 or by a character", text)
			}
			i += n - 1
		case c >= 0x80:
			return reason("name %q is not ASCII; write an internationalized name in its xn-- form", text)
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(`.-_*/`, c) >= 0:
		default:
			return reason("name %q contains %q", text, c)
		}
	}
	return nil
}

// escapeLength returns the length of the escape \DDD or \X (RFC 1035, section 5.1)
// at the start of text, or 0 if there is none.
func escapeLength(text string) int {
	switch {
	case len(text) >= 4 && isDigits(text[1:4]) && text[1:4] <= "255":
		return 4
	case len(text) >= 2 && text[1] > ' ' && text[1] < 0x7f && !isDigits(text[1:2]):
		return 2
	}
	return 0
}

// parseZones returns text as a zone, or the reverse zones that cover a prefix such
// as 10.0.0.0/24.
func parseZones(text string) ([]string, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return reverseZones(prefix), nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return nil, reason("%q is an address, not a zone; write a reverse zone as ADDRESS/PREFIX-LENGTH", text)
	}
	zone, err := parseName(text)
	if err != nil {
		return nil, err
	}
	// RFC 2317 allows slashes in names below arpa.
	if strings.Contains(text, "/") && !strings.HasSuffix(zone, ".arpa.") {
		return nil, reason("%q is not a name or a prefix such as 10.0.0.0/24", text)
	}
	return []string{zone}, nil
}

// parseZoneList calls parseZones for the arguments of s from index from.
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

// reverseZones returns the zones under in-addr.arpa or ip6.arpa that cover prefix.
// A prefix that does not end at a label boundary has several, at most 128.
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

// reverseLabel returns byte i of raw, or nibble i if labelBits is 4.
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
