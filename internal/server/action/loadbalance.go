package action

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// LoadBalance orders the records of a reply at random: A and AAAA with each
// other, MX with each other. CNAMEs come first, then other types.
type LoadBalance struct {
	Prefer []netip.Prefix // addresses in these come first, in this order
}

// Order orders the records of m. A nil LoadBalance changes nothing.
func (l *LoadBalance) Order(m *dns.Msg) {
	if l == nil || m.Rcode != dns.RcodeSuccess {
		return
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		slices.SortStableFunc(section, func(a, b dns.RR) int { return l.rank(a) - l.rank(b) })
		l.shuffle(section)
	}
}

// shuffle shuffles each group of addresses and of MX in a section that is
// sorted by rank. CNAMEs and other types keep their order.
func (l *LoadBalance) shuffle(section []dns.RR) {
	for len(section) > 0 {
		rank := l.rank(section[0])
		n := slices.IndexFunc(section, func(rr dns.RR) bool { return l.rank(rr) != rank })
		if n < 0 {
			n = len(section)
		}
		group := section[:n]
		if rank >= rankAddress {
			rand.Shuffle(n, func(i, j int) { group[i], group[j] = group[j], group[i] })
		}
		section = section[n:]
	}
}

// rank is the position of a record's group.
func (l *LoadBalance) rank(rr dns.RR) int {
	switch r := rr.(type) {
	case *dns.A:
		return rankAddress + l.preference(r.A)
	case *dns.AAAA:
		return rankAddress + l.preference(r.AAAA)
	case *dns.MX:
		return rankMX
	case *dns.CNAME:
		return rankCNAME
	}
	return rankOther
}

const (
	rankCNAME = iota
	rankOther
	rankAddress
	rankMX = 1 << 20
)

// preference is the index of the first preferred network that holds ip.
func (l *LoadBalance) preference(ip []byte) int {
	addr, _ := netip.AddrFromSlice(ip)
	i := slices.IndexFunc(l.Prefer, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
	if i < 0 {
		return len(l.Prefer)
	}
	return i
}
