package cache

import (
	"hash/maphash"
	"time"

	"github.com/miekg/dns"
)

// Cache is a handle on the entries of one id, see Store.Cache. It is safe for
// concurrent use.
type Cache struct {
	store  *Store
	space  *space
	policy *policy
}

// State is the outcome of a lookup.
type State uint8

// The states of a Hit.
const (
	Miss   State = iota // no entry; Hit.Entry is nil
	Fresh               // an answer within its TTL
	Stale               // an answer past its TTL that may be served (RFC 8767)
	Failed              // a failure that must not be retried yet (RFC 9520)
)

// Hit is the result of a lookup.
type Hit struct {
	Entry *Entry
	State State
	// Age is the argument for Entry.AgeTTLs.
	Age uint32
	// Refresh tells the caller to fetch a new answer while it serves this one. Only
	// one caller at a time gets true. Call Cache.RefreshDone if the refresh ends
	// without a Put; an extra call is harmless.
	Refresh bool
	// Verify is set on a Stale hit that may be served only after an upstream
	// query has failed.
	Verify bool
}

// Get looks up key. now is the time of the query, read from the Store's clock.
func (c *Cache) Get(key []byte, now time.Time) Hit { return c.GetInto(key, now, nil) }

// GetInto is Get into the memory of e, which it overwrites. It does not allocate
// once e has held an answer of that size. If e is nil, it allocates a new Entry.
func (c *Cache) GetInto(key []byte, now time.Time, e *Entry) Hit {
	t := now.Sub(c.store.start)
	hash, set := c.locate(key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()

	id, h := c.get(set, hash, key, t)
	if h.State == Miss {
		return h
	}
	if h.Entry = e; e == nil {
		h.Entry = new(Entry)
	}
	set.shard.slab.read(id, h.Entry)
	return h
}

// get returns the first block of the entry that GetInto finds, and the Hit
// without its Entry.
func (c *Cache) get(set *binSet, hash uint32, key []byte, t time.Duration) (uint32, Hit) {
	slab := &set.shard.slab
	id := set.find(Success, hash, key)
	if id != 0 && c.policy.keeps(slab.slot(id).kind(), key) {
		sl := slab.slot(id)
		if t < sl.expiry() {
			if sl.state&stateKernel != 0 && set.shard.takeHits(sl) {
				sl.used = max(sl.used, int64(t)) // approximate: the kernel does not report the time
			}
			h := c.fresh(sl, t)
			h.Refresh = c.policy.prefetch.Amount > 0 && c.policy.prefetch.due(sl, t) && c.liveFailure(set, hash, key, t) == 0 && sl.claimRefresh()
			return id, h
		}
		failure := c.liveFailure(set, hash, key, t)
		if t < sl.expiry()+c.policy.staleFor {
			return id, c.stale(sl, t, failure != 0)
		}
		if failure == 0 {
			set.shard.drop(id)
			return 0, Hit{}
		}
	}
	if failure := c.liveFailure(set, hash, key, t); failure != 0 {
		sl := slab.slot(failure)
		sl.count()
		return failure, Hit{State: Failed, Age: sl.age(t)}
	}
	return 0, Hit{}
}

// liveFailure returns the first block of the key's failure if it is unexpired at
// t, else 0. An expired failure stays cached because it holds the back-off.
func (c *Cache) liveFailure(set *binSet, hash uint32, key []byte, t time.Duration) uint32 {
	if c.policy.servFail == 0 {
		return 0
	}
	if id := set.find(Failure, hash, key); id != 0 {
		if sl := set.shard.slab.slot(id); t < sl.expiry() && c.store.counts(sl) {
			return id
		}
	}
	return 0
}

// Put stores m as the answer to key if the policy allows it, and returns the
// entry to reply from. It fails only if m has no wire format. It never stores an
// answer to a question other than key's. It does not modify m.
//
// Put clamps the TTLs of every answer that the policy covers, stored or not. A
// stored answer replaces the key's data, denial or failure. An answer with TTL 0
// removes them. Any other answer leaves the cache unchanged.
func (c *Cache) Put(key []byte, m *dns.Msg) (*Entry, error) {
	a, err := newAnswer(m)
	if err != nil {
		return nil, err
	}
	kind, cacheable := a.classify()
	if c.policy.zones != nil && !within(key, c.policy.zones) {
		cacheable = false
	}
	life := uint32(0)
	if cacheable {
		life = a.limitTTLs(kind, c.policy.classes[kind].bounds)
	}
	e, err := a.pack()
	if err != nil || !cacheable || !e.setKey(key) {
		return e, err
	}
	e.kind, e.ttl = kind, life
	if !c.replace(key, e) {
		e.ttl = 0
	}
	return e, nil
}

// replace removes the key's entries and stores e if the policy keeps it. It reports
// whether it stored e.
func (c *Cache) replace(key []byte, e *Entry) bool {
	hash, set := c.locate(key)
	sh := set.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()

	born := c.store.elapsed()
	if failure := set.find(Failure, hash, key); failure != 0 {
		sh.drop(failure)
	}
	var l inherited
	keeps := e.ttl > 0 && c.policy.keeps(e.kind, key)
	if id := set.find(Success, hash, key); id != 0 {
		sl := sh.slab.slot(id)
		if sl.state&stateKernel != 0 {
			sh.withdraw(sl)
		}
		if keeps && sl.kind() == e.kind && sh.overwrite(id, e, born) {
			return true
		}
		l = sl.inherited()
		sh.drop(id)
	}
	return keeps && set.add(hash, e, born, c.policy.classes[e.kind].cap, l)
}

// locate returns the hash of key, which differs between ids, and the bins for it. The
// upper half of the hash selects the shard.
func (c *Cache) locate(key []byte) (hash uint32, set *binSet) {
	h := maphash.Bytes(c.store.seed, key)
	set = c.space.sets[h>>32*uint64(len(c.space.sets))>>32]
	return uint32(h) + uint32(set.number)*0x9e3779b1, set
}

func (c *Cache) fresh(sl *slot, t time.Duration) Hit {
	c.count(sl, t)
	h := Hit{State: Fresh}
	if !c.policy.keepTTL {
		h.Age = sl.age(t)
	}
	return h
}

// stale requests no upstream query while a failure of the key is fresh.
func (c *Cache) stale(sl *slot, t time.Duration, failed bool) Hit {
	c.count(sl, t)
	h := Hit{State: Stale, Age: StaleAge}
	if !failed {
		h.Verify = c.policy.staleVerify
		h.Refresh = !h.Verify && sl.claimRefresh()
	}
	return h
}

// count records a lookup at t for eviction and prefetching.
func (c *Cache) count(sl *slot, t time.Duration) {
	sl.count()
	if c.policy.prefetch.Amount > 0 {
		sl.touch(t, c.policy.prefetch.Duration)
	}
}

func (s *Store) elapsed() time.Duration { return s.now().Sub(s.start) }
