package server

import (
	"net/netip"
	"sync"
)

// quota bounds the concurrent misses of each client. It is safe for concurrent
// use.
type quota struct {
	limit  int
	shards [quotaShards]quotaShard
}

const quotaShards = 16

type quotaShard struct {
	mu     sync.Mutex
	active map[netip.Addr]int // misses by client, without zeros
	_      [40]byte           // one cache line per shard
}

func newQuota(limit int) *quota {
	q := &quota{limit: limit}
	for i := range q.shards {
		q.shards[i].active = make(map[netip.Addr]int)
	}
	return q
}

// shard selects a shard by the last bytes of the address, in which the pods of a
// node differ.
func (q *quota) shard(a netip.Addr) *quotaShard {
	b := a.As16()
	return &q.shards[(b[15]^b[11])%quotaShards]
}

// acquire counts one more miss of a. It returns false if a is at its limit. Every
// success needs a release.
func (q *quota) acquire(a netip.Addr) bool {
	s := q.shard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.active[a]
	if n >= q.limit {
		return false
	}
	s.active[a] = n + 1
	return true
}

// release ends a miss that acquire has counted.
func (q *quota) release(a netip.Addr) {
	s := q.shard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[a]--; s.active[a] <= 0 {
		delete(s.active, a)
	}
}
