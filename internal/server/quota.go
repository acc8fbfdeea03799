package server

import (
	"net/netip"
	"sync"
)

// quota bounds what each client has under way at once. It is safe for
// concurrent use.
type quota struct {
	limit  int
	shards [quotaShards]quotaShard
}

const quotaShards = 16

type quotaShard struct {
	mu    sync.Mutex
	under map[netip.Addr]int // what is under way; nobody is in it with 0
	_     [40]byte           // a cache line each
}

func newQuota(limit int) *quota {
	q := &quota{limit: limit}
	for i := range q.shards {
		q.shards[i].under = make(map[netip.Addr]int)
	}
	return q
}

// shard spreads clients by the end of their address, where those of one node
// differ.
func (q *quota) shard(a netip.Addr) *quotaShard {
	b := a.As16()
	return &q.shards[(b[15]^b[11])%quotaShards]
}

// enter reports whether a may have one more under way, and notes it. Each that
// entered has to leave.
func (q *quota) enter(a netip.Addr) bool {
	s := q.shard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.under[a]
	if n >= q.limit {
		return false
	}
	s.under[a] = n + 1
	return true
}

func (q *quota) leave(a netip.Addr) {
	s := q.shard(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.under[a]--; s.under[a] <= 0 {
		delete(s.under, a)
	}
}
