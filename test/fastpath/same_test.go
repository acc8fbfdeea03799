package fastpath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// varied answers by the first letter of the name.
func varied(q *dns.Msg) *dns.Msg {
	name, r := q.Question[0].Name, lab.Reply(q)
	add := func(format string, args ...any) {
		rr, err := dns.NewRR(fmt.Sprintf(format, args...))
		if err != nil {
			panic(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	switch kind, qtype := strings.ToLower(name)[0], q.Question[0].Qtype; {
	case kind == 'x':
		r = lab.Denial(q, dns.RcodeNameError, "example.")
		r.Ns[0].Header().Ttl, r.Ns[0].(*dns.SOA).Minttl = 3600, 3600
	case kind == 'c' && qtype == dns.TypeA:
		add("%s 3600 IN CNAME target.%s", name, name)
		add("target.%s 1800 IN A 192.0.2.7", name)
	case kind == 'm' && qtype == dns.TypeA:
		for i := range 30 {
			add("%s 3600 IN A 192.0.2.%d", name, i)
		}
	case qtype == dns.TypeA:
		add("%s 3600 IN A 192.0.2.1", name)
	case qtype == dns.TypeTXT:
		add("%s 3600 IN TXT %q", name, strings.Repeat("t", 200))
	case qtype == dns.TypeHTTPS:
		add(`%s 3600 IN HTTPS 1 . alpn="h2"`, name)
	default:
		r = lab.Denial(q, dns.RcodeSuccess, "example.")
		r.Ns[0].Header().Ttl, r.Ns[0].(*dns.SOA).Minttl = 3600, 3600
	}
	r.AuthenticatedData = q.Question[0].Qtype == dns.TypeA
	return r
}

// domains: normalize judges denials of the second one by both address types.
var domains = []string{"example.", "corp.test."}

// randomQuery is a query in wire format, with any case, flags, and EDNS options.
func randomQuery(rnd *rand.Rand) []byte {
	text := fmt.Sprintf("%c%d.%s", "acmxz"[rnd.IntN(5)], rnd.IntN(4), domains[rnd.IntN(2)])
	if rnd.IntN(8) == 0 { // as long as the kernel's names may be, or one byte longer
		text = strings.Repeat(text[:1], 117-len(text)+rnd.IntN(2)-60) + "." + strings.Repeat("l", 60) + "." + text
	}
	name := []byte(text)
	for i, c := range name {
		if c >= 'a' && c <= 'z' && rnd.IntN(2) == 0 {
			name[i] = c - 'a' + 'A'
		}
	}
	types := []uint16{dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS}
	q := lab.Query(string(name), types[rnd.IntN(len(types))])
	q.RecursionDesired = rnd.IntN(8) > 0
	q.AuthenticatedData, q.CheckingDisabled, q.Zero = rnd.IntN(3) == 0, rnd.IntN(8) == 0, rnd.IntN(20) == 0
	if rnd.IntN(2) == 0 {
		q.SetEdns0([]uint16{0, 512, 700, 1232, 4096}[rnd.IntN(5)], rnd.IntN(4) == 0)
		o := q.IsEdns0()
		switch rnd.IntN(10) {
		case 0, 1, 2:
			o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})
		case 3:
			o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "010203040506070801020304050607080102030405060708"})
		case 4:
			o.Option = append(o.Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)})
		case 5:
			o.Option = append(o.Option, &dns.EDNS0_PADDING{Padding: make([]byte, 8)})
		}
	}
	wire, err := q.Pack()
	if err != nil {
		panic(err)
	}
	return wire
}

// takeTTLs sets the TTLs in a reply to 0 and returns them. OPT has none.
func takeTTLs(msg []byte) (ttls []uint32) {
	skip := func(off int) int {
		for msg[off] != 0 && msg[off] < 0xc0 {
			off += 1 + int(msg[off])
		}
		if msg[off] >= 0xc0 {
			off++
		}
		return off + 1
	}
	off := skip(12) + 4
	for off < len(msg) {
		off = skip(off)
		if binary.BigEndian.Uint16(msg[off:]) != dns.TypeOPT {
			ttls = append(ttls, binary.BigEndian.Uint32(msg[off+4:]))
			clear(msg[off+4 : off+8])
		}
		off += 10 + int(binary.BigEndian.Uint16(msg[off+8:]))
	}
	return ttls
}

// exchangeWire sends a query and returns the reply in wire format.
func exchangeWire(t *testing.T, c net.Conn, query []byte) []byte {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// TestSame: replies of the kernel are those of the daemon, byte for byte except for a
// second of TTL. A client on the node itself is always answered by the daemon.
func TestSame(t *testing.T) {
	n := newNode(t, varied)
	n.start(t, 2, "normalize corp.test", "fastpath on")
	const queries = 3000 // from each pod over each family
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	before := n.answers(t)
	for _, server := range servers() {
		own := n.Dial(t, "udp", server)
		for _, pod := range []*lab.Netns{n.routed, n.bridged} {
			n.warm(t, pod, server, "warm.example.")
			c := pod.Dial(t, "udp", server)
			for range queries {
				query := randomQuery(rnd)
				want, got := exchangeWire(t, own, query), exchangeWire(t, c, query)
				wantTTLs, gotTTLs := takeTTLs(want), takeTTLs(got)
				for i := range min(len(wantTTLs), len(gotTTLs)) {
					if d := int64(wantTTLs[i]) - int64(gotTTLs[i]); d < -1 || d > 1 {
						t.Fatalf("query % x: TTLs %v, want %v", query, gotTTLs, wantTTLs)
					}
				}
				if !bytes.Equal(want, got) {
					t.Fatalf("%s to %s, query\n% x: reply\n% x, want\n% x", pod.Name, server, query, got, want)
				}
			}
		}
	}
	kernel := n.answers(t) - before
	t.Logf("the kernel answered %v of %d queries; passed: %s", kernel, 4*queries, n.passed(t))
	if kernel < 2*queries {
		t.Error("the kernel answered too few queries")
	}
	requests, _ := n.Scrape(t, metrics).Sum("coredns_dns_requests_total", "zone=.")
	if requests < 8*queries {
		t.Errorf("coredns_dns_requests_total is %v after %d queries", requests, 8*queries)
	}
}
