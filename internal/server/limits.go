package server

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// misses limits the queries being resolved: clients' queries that wait for an
// answer, and queries to upstreams for which no client waits any more. Each of them
// takes one slot. It is safe for concurrent use.
type misses struct {
	limit     int64
	perClient int // of one client in one zone

	active atomic.Int64
	shards [missShards]missShard
}

const missShards = 16

type missShard struct {
	mu     sync.Mutex
	active map[missOwner]int // without zeros
	_      [40]byte          // one cache line per shard
}

// missOwner is a client, in one zone: a pod whose lookups of external names fail
// must still resolve cluster names.
type missOwner struct {
	client netip.Addr
	zone   *Zone
}

// zoneShare limits the slots of one of several zones to this multiple of the free
// slots. One zone alone gets 4/5 of all slots, two get 4/9 each, and some slots
// always stay free for other zones.
const zoneShare = 4

func newMisses(limit, perClient int) *misses {
	m := &misses{limit: int64(limit), perClient: perClient}
	for i := range m.shards {
		m.shards[i].active = make(map[missOwner]int)
	}
	return m
}

// refusal is the reason why there is no slot. It is the text of an Extended DNS
// Error.
type refusal string

const (
	refusedClient refusal = "too many queries of this client are being resolved"
	refusedAll    refusal = "too many queries are being resolved"
)

func (r refusal) Error() string { return string(r) }

// acquire takes a slot for client in z, or returns the reason why it cannot. Every
// slot needs a release.
func (m *misses) acquire(z *boundZone, client netip.Addr) error {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := missOwner{client, z.Zone}
	if s.active[owner] >= m.perClient {
		return refusedClient
	}
	zone, all := z.active.Add(1), m.active.Add(1)
	if all > m.limit || len(z.table.zones) > 1 && zone > zoneShare*(m.limit-all+1) {
		z.active.Add(-1)
		m.active.Add(-1)
		return refusedAll
	}
	s.active[owner]++
	return nil
}

// charge takes a slot for a query to an upstream that continues without its client.
// The slot may exceed the limits; later misses then get no slot until enough are
// released.
func (m *misses) charge(z *boundZone, client netip.Addr) {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	z.active.Add(1)
	m.active.Add(1)
	s.active[missOwner{client, z.Zone}]++
}

// release releases a slot.
func (m *misses) release(z *boundZone, client netip.Addr) {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	z.active.Add(-1)
	m.active.Add(-1)
	owner := missOwner{client, z.Zone}
	if s.active[owner]--; s.active[owner] <= 0 {
		delete(s.active, owner)
	}
}

// shard selects a shard by the last bytes of the address, in which the pods of a
// node differ.
func (m *misses) shard(a netip.Addr) *missShard {
	b := a.As16()
	return &m.shards[(b[15]^b[11])%missShards]
}
