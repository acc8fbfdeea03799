package cache

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultBytes  = 32 << 20
	maxShards     = 256
	minShardBytes = 256 << 10
)

// Options configure a Store.
type Options struct {
	// Bytes bounds the memory of all entries, see Stats.Bytes. 0: 32 MiB.
	Bytes int64
	// Shards is the number of parts. Each has its own lock and an equal share
	// of Bytes. 0: chosen from GOMAXPROCS and Bytes.
	Shards int
	// Now is the clock; nil: time.Now. Only differences are used, so with
	// monotonic readings steps of the wall clock have no effect.
	Now func() time.Time
	// Kernel, if not nil, gets entries by Cache.Promote.
	Kernel Kernel
}

// Store holds the entries of all caches under one byte budget. It is safe for
// concurrent use and owns no goroutine.
type Store struct {
	now       func() time.Time
	start     time.Time
	seed      maphash.Seed
	maxBudget int64 // bytes
	shards    []*shard
	failures  atomic.Int64 // those born before do not count; nanoseconds since start

	mu     sync.Mutex
	budget int64 // bytes
	spaces map[string]*space
}

// space holds the entries of one id: a set of bins in each shard.
type space struct {
	sets   []*binSet
	policy *policy // of the latest handle
}

// New returns an empty Store.
func New(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Bytes <= 0 {
		o.Bytes = defaultBytes
	}
	if o.Shards <= 0 {
		o.Shards = defaultShards(o.Bytes)
	}
	s := &Store{
		now:       o.Now,
		start:     o.Now(),
		seed:      maphash.MakeSeed(),
		budget:    o.Bytes,
		maxBudget: o.Bytes,
		shards:    make([]*shard, o.Shards),
		spaces:    make(map[string]*space),
	}
	for i := range s.shards {
		share := o.Bytes / int64(o.Shards)
		s.shards[i] = &shard{share: share, slab: newSlab(share, s), kernel: o.Kernel}
	}
	return s
}

// defaultShards returns a number that keeps lock contention rare and each share
// large enough for the largest message.
func defaultShards(bytes int64) int {
	n := int64(min(4*runtime.GOMAXPROCS(0), maxShards))
	return int(max(min(n, bytes/minShardBytes), 1))
}

// Cache opens the cache id under policy p. Handles of one id share its entries,
// and each applies its own policy. So a reload can open the id again and use the
// old handle until it switches over.
func (s *Store) Cache(id string, p Policy) *Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[id]
	if sp == nil {
		sp = &space{sets: make([]*binSet, len(s.shards))}
		for i, sh := range s.shards {
			sp.sets[i] = sh.addSet()
		}
		s.spaces[id] = sp
	}
	sp.policy = compile(p, len(s.shards))
	return &Cache{store: s, space: sp, policy: sp.policy}
}

// Retain drops the entries of all ids except the given ones. Handles of a dropped
// id find and store nothing from then on.
func (s *Store) Retain(ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sp := range s.spaces {
		if ids[id] {
			continue
		}
		for i, sh := range s.shards {
			sh.dropSet(sp.sets[i])
		}
		delete(s.spaces, id)
	}
}
