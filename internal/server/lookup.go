package server

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// maxDepth bounds the synthesised CNAMEs that one question follows.
const maxDepth = 8

// lookupName looks up another name on behalf of x, in the cache or from the
// sources of its zone on the same listener. It does not join queries in flight,
// because a cycle of CNAMEs would make them wait for each other. It returns nil
// if there is no answer.
func (x *exchange) lookupName(ctx context.Context, name string, qtype uint16) *dns.Msg {
	lower, err := dnsname.Pack(name)
	if err != nil || x.depth >= maxDepth {
		return nil
	}
	q := Query{
		name: lower, lower: lower, qtype: qtype, qclass: dns.ClassINET, flags: flagRD, cd: x.m.CheckingDisabled, ad: x.m.AuthenticatedData, start: x.srv.clock(),
		client: x.client, tcp: x.tcp, zone: x.zone.table.find(lower),
	}
	if opt := x.m.IsEdns0(); opt != nil {
		q.do = opt.Do()
	}
	if q.zone == nil {
		return nil
	}
	q.makeKey()
	other := new(exchange).fill(x.srv, &q)
	other.depth = x.depth + 1
	entry, age := other.entryOf(ctx)
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

// entryOf returns the answer from the cache, else from the sources. It returns nil
// if there is none, or if too many lookups are in progress: each holds a goroutine.
func (x *exchange) entryOf(ctx context.Context) (*cache.Entry, uint32) {
	if hit := x.zone.peek(x.key, x.srv.clock(), nil); hit.State == cache.Fresh {
		return hit.Entry, hit.Age
	}
	defer x.srv.lookups.Add(-1)
	if x.srv.lookups.Add(1) > x.srv.maxLookups {
		return nil, 0
	}
	r, err := x.ask(ctx)
	a := x.store(r, err)
	if a.err != nil {
		return nil, 0
	}
	return a.entry, 0
}
