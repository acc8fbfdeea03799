// Package dnsname handles domain names in lower-case wire format without
// compression (RFC 1035 §3.1).
package dnsname

import (
	"bytes"
	"fmt"

	"github.com/miekg/dns"
)

// MaxLen is the longest name in bytes, RFC 1035 §2.3.4.
const MaxLen = 255

// Pack packs a name in presentation form.
func Pack(name string) ([]byte, error) {
	buf := make([]byte, MaxLen+1)
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf, 0, nil, false)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// String is name in presentation form.
func String(name []byte) string {
	s, _, err := dns.UnpackDomainName(name, 0)
	if err != nil {
		return "."
	}
	return s
}

// PackAll packs each of names.
func PackAll(names []string) ([][]byte, error) {
	var packed [][]byte
	for _, s := range names {
		name, err := Pack(s)
		if err != nil {
			return nil, fmt.Errorf("domain name %q: %w", s, err)
		}
		packed = append(packed, name)
	}
	return packed, nil
}

// IsBelow reports whether name is a proper subdomain of suffix.
func IsBelow(name, suffix []byte) bool {
	if !bytes.HasSuffix(name, suffix) {
		return false
	}
	// The bytes match. The labels match if one of name's begins there.
	cut := len(name) - len(suffix)
	off := 0
	for off < cut {
		off += 1 + int(name[off])
	}
	return off == cut && cut > 0
}
