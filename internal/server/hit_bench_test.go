package server

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// BenchmarkHit parses, looks up, copies, patches and counts, without sockets.
func BenchmarkHit(b *testing.B) {
	ts := newTestServer(b, Config{}, zone("example.org.", newCache(b), example(b)))
	ts.mu.Lock()
	l := ts.listeners[ts.addr]
	ts.mu.Unlock()
	for _, c := range []struct {
		name string
		m    *dns.Msg
	}{
		{"positive", query("www.example.org.", dns.TypeA)},
		{"positive-edns", query("www.example.org.", dns.TypeA, withEDNS(1232, false))},
		{"negative", query("gone.example.org.", dns.TypeA)},
	} {
		ts.ask(b, "udp", c.m)
		msg := pack(b, c.m)
		b.Run(c.name, func(b *testing.B) {
			q := Query{memory: new(lookupMemory)}
			q.client = netip.MustParseAddrPort("127.0.0.1:1")
			out := make([]byte, 0, 2048)
			b.ReportAllocs()
			for b.Loop() {
				q.start = ts.clock()
				if _, ok := ts.tryHit(out, l, 0, &q, q.parse(msg)); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}

// BenchmarkParse runs the parser only.
func BenchmarkParse(b *testing.B) {
	for _, opts := range [][]func(*dns.Msg){nil, {withEDNS(1232, true)}} {
		msg := pack(b, query("httpd.dnscheck.svc.cluster.local.", dns.TypeA, opts...))
		b.Run(fmt.Sprintf("%d-bytes", len(msg)), func(b *testing.B) {
			q := Query{memory: new(lookupMemory)}
			b.ReportAllocs()
			for b.Loop() {
				if q.parse(msg) != accept {
					b.Fatal("not accepted")
				}
			}
		})
	}
}
