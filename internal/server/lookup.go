package server

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// maxDepth bounds the CNAMEs of our own making that one question follows.
const maxDepth = 8

// lookUp looks up another name for the sake of x, among the zones of the same
// listener: in their cache, or from their sources. It does not join flights, as
// a circle of CNAMEs would make them wait for each other. It returns nil if
// there is no answer.
func (s *Server) lookUp(ctx context.Context, x *exchange, name string, qtype uint16) *dns.Msg {
	lower, err := dnsname.Pack(name)
	if err != nil || x.depth >= maxDepth {
		return nil
	}
	q := Query{
		name: lower, lower: lower, qtype: qtype, qclass: dns.ClassINET, flags: x.flags(), ad: x.m.AuthenticatedData, start: s.clock(),
		client: x.client, tcp: x.tcp, zone: x.zone.table.find(lower),
	}
	if opt := x.m.IsEdns0(); opt != nil {
		q.do = opt.Do()
	}
	if q.zone == nil {
		return nil
	}
	q.key = cache.AppendKey(q.keyBuf[:0], q.lower, q.qtype, q.qclass, q.do, q.cd(), q.ad)
	other := q.exchange()
	other.depth = x.depth + 1
	entry, age := s.entryOf(ctx, other)
	if entry == nil {
		return nil
	}
	packed := append([]byte(nil), entry.Msg()...)
	entry.AgeTTLs(packed, age)
	m := new(dns.Msg)
	if m.Unpack(packed) != nil {
		return nil
	}
	return m
}

// entryOf is the answer from the cache or, if that has none, from the sources;
// nil if there is none.
func (s *Server) entryOf(ctx context.Context, x *exchange) (*cache.Entry, uint32) {
	if hit := x.zone.peek(x.key, s.clock(), nil); hit.State == cache.Fresh {
		return hit.Entry, hit.Age
	}
	r, err := s.ask(ctx, x)
	a := s.store(x, r, err)
	if a.err != nil {
		return nil, 0
	}
	return a.entry, 0
}

// flags are the header bits of the exchange's question.
func (x *exchange) flags() uint16 {
	f := uint16(flagRD)
	if x.m.CheckingDisabled {
		f |= flagCD
	}
	return f
}
