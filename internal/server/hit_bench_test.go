package server

import (
	"context"
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

// BenchmarkBatch answers and counts batches of hits, without sockets, with and without
// the statistics of queries. One operation is one query.
func BenchmarkBatch(b *testing.B) {
	for _, listed := range []bool{false, true} {
		b.Run(fmt.Sprintf("statistics=%t", listed), func(b *testing.B) {
			ts := newTestServer(b, Config{}, zone("example.org.", newCache(b), sourceFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
				return reply(b, m, m.Question[0].Name+" 3600 IN A 192.0.2.1"), nil
			})))
			ts.mu.Lock()
			l := ts.listeners[ts.addr]
			ts.mu.Unlock()
			var messages [batchSize][]byte
			for i := range messages {
				m := query(fmt.Sprintf("name-%d.some-namespace.example.org.", i%16), dns.TypeA)
				ts.ask(b, "udp", m)
				messages[i] = pack(b, m)
			}
			for _, z := range l.table.Load().zones {
				z.stats.listed = listed
			}
			mem := &lookupMemory{batch: true}
			q := Query{memory: mem, client: netip.MustParseAddrPort("127.0.0.1:1")}
			out := make([]byte, 0, 2048)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%batchSize == 0 {
					now := ts.clock()
					for k := range mem.tallies {
						mem.tallies[k].took = now.Sub(q.start)
						mem.tallies[k].count(0)
					}
					if len(mem.samples) > 0 {
						ts.metrics.stats.Add(mem.samples, now.Sub(q.start), now)
					}
					mem.tallies, mem.samples, q.start = mem.tallies[:0], mem.samples[:0], now
				}
				if _, ok := ts.tryHit(out, l, 0, &q, q.parse(messages[i%batchSize])); !ok {
					b.Fatal("miss")
				}
			}
		})
	}
}
