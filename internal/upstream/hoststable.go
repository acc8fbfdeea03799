package upstream

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// hostsTable holds the entries of hosts(5) in both directions.
type hostsTable struct {
	zones []string                // names outside are ignored
	addrs map[string][]netip.Addr // by canonical name; a wildcard begins with "*."
	names map[netip.Addr][]string // nil: no reverse entries are kept
}

func newHostsTable(zones []string, reverse bool) *hostsTable {
	t := &hostsTable{zones: zones, addrs: make(map[string][]netip.Addr)}
	if reverse {
		t.names = make(map[netip.Addr][]string)
	}
	return t
}

// parse adds the lines of a hosts file. It ignores lines that are no entry, as
// libc does.
func (t *hostsTable) parse(text []byte) {
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if a, err := netip.ParseAddr(f[0]); err == nil {
			t.add(a, f[1:])
		}
	}
}

// add adds names, in any case and with or without the final dot. It drops an
// IPv6 zone, which DNS cannot carry, and turns a mapped IPv4 address into the
// IPv4 address. Repeated entries count once. Wildcards have no reverse entries.
func (t *hostsTable) add(a netip.Addr, names []string) {
	a = a.Unmap().WithZone("")
	for _, n := range names {
		if _, ok := dns.IsDomainName(n); !ok {
			continue
		}
		n = dns.CanonicalName(n)
		if !within(t.zones, n) || slices.Contains(t.addrs[n], a) {
			continue
		}
		t.addrs[n] = append(t.addrs[n], a)
		if t.names != nil && !strings.HasPrefix(n, "*.") {
			t.names[a] = append(t.names[a], n)
		}
	}
}

// find returns the addresses of a canonical name. For a family of which it has
// none, these are the addresses of the wildcard in place of its first label. As
// in CoreDNS, and unlike RFC 4592, a wildcard stands for one label.
func (t *hostsTable) find(name string) []netip.Addr {
	own := t.addrs[name]
	next, last := dns.NextLabel(name, 0)
	if last {
		return own
	}
	found := slices.Clip(own)
	for _, a := range t.addrs["*."+name[next:]] {
		if !slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			found = append(found, a)
		}
	}
	return found
}

// reverseAddr returns the address that a canonical name under in-addr.arpa
// (RFC 1035 section 3.5) or ip6.arpa (RFC 3596 section 2.5) stands for, and the
// zero Addr for any other name.
func reverseAddr(name string) netip.Addr {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		f := strings.Split(rest, ".")
		slices.Reverse(f)
		a, err := netip.ParseAddr(strings.Join(f, "."))
		if err != nil || !a.Is4() {
			return netip.Addr{}
		}
		return a
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok || len(rest) != 63 {
		return netip.Addr{}
	}
	f := strings.Split(rest, ".")
	slices.Reverse(f)
	b, err := hex.DecodeString(strings.Join(f, ""))
	if err != nil || len(f) != 32 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(b))
}
