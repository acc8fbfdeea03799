package server

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// maxDepth bounds the CNAMEs of our own making that one question follows.
const maxDepth = 8

// lookUp looks up another name for the sake of in, among the zones of the same
// listener: in their cache, or from their sources. It does not join flights, as
// a circle of CNAMEs would make them wait for each other. It returns nil if
// there is no answer.
func (s *Server) lookUp(ctx context.Context, in *inquiry, name string, qtype uint16) *dns.Msg {
	lower, err := wireName(name)
	if err != nil || in.depth >= maxDepth {
		return nil
	}
	q := Query{
		name: lower, lower: lower, qtype: qtype, qclass: dns.ClassINET, flags: in.flags(), ad: in.m.AuthenticatedData, start: s.clock(),
		client: in.client, tcp: in.tcp, zone: in.zone.table.find(lower),
	}
	if opt := in.m.IsEdns0(); opt != nil {
		q.do = opt.Do()
	}
	if q.zone == nil {
		return nil
	}
	q.key = cache.AppendKey(q.keyBuf[:0], q.lower, q.qtype, q.qclass, q.do, q.cd(), q.ad)
	other := q.inquiry()
	other.depth = in.depth + 1
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
func (s *Server) entryOf(ctx context.Context, in *inquiry) (*cache.Entry, uint32) {
	if hit := in.zone.peek(in.key, s.clock(), nil); hit.State == cache.Fresh {
		return hit.Entry, hit.Age
	}
	a, err := s.fetch(ctx, in)
	if err != nil {
		return nil, 0
	}
	return a.entry, a.age
}

// flags are the header bits of the inquiry's question.
func (in *inquiry) flags() uint16 {
	f := uint16(flagRD)
	if in.m.CheckingDisabled {
		f |= flagCD
	}
	return f
}
