package cache

import (
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

// State says what a look-up found.
type State uint8

// The states of a Hit.
const (
	Miss   State = iota // nothing; Hit.Entry is nil
	Fresh               // an answer within its TTL
	Stale               // an answer past its TTL that may be served (RFC 8767)
	Failed              // a failure that is not to be retried yet (RFC 9520)
)

// Hit is the result of a look-up.
type Hit struct {
	Entry *Entry
	State State
	// Age is what to pass to Entry.AgeTTLs.
	Age uint32
	// Refresh asks the caller, and nobody else, to fetch the answer anew while
	// this one is served. When that ends without a Put, call
	// Entry.RefreshDone; calling it in any case is harmless.
	Refresh bool
	// Verify is set on a Stale hit that must not be served before upstream was
	// asked and failed.
	Verify bool
}

// Get looks a key up. now is the time of the query, read from the clock of the
// Store. It does not allocate.
func (c *Cache) Get(key []byte, now time.Time) Hit {
	t := now.Sub(c.store.start)
	hash := c.store.hash(key)
	set := c.set(hash)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()

	e := c.find(set, hash, key)
	if e != nil && t < e.expiry() {
		h := c.fresh(e, t)
		h.Refresh = c.policy.prefetch.due(e, t) && c.liveFailure(set, hash, key, t) == nil && e.claimRefresh()
		return h
	}
	failure := c.liveFailure(set, hash, key, t)
	if e != nil && t < e.expiry()+c.policy.staleFor {
		return c.stale(e, t, failure != nil)
	}
	if failure != nil {
		failure.used = t
		return Hit{Entry: failure, State: Failed, Age: failure.age(t)}
	}
	if e != nil {
		set.remove(e.kind, hash)
	}
	return Hit{}
}

// Put decides whether and where m is kept as the answer to key, and returns the
// entry to answer from. That entry exists for every m that has a wire format;
// otherwise the error of NewEntry is returned. An answer to another question
// than key's is never kept. m is not modified.
//
// TTLs of answers that the policy covers are clamped even if they are not kept.
// A kept answer replaces whatever the key had, be it data, denial or failure.
// An answer that must not be reused because its TTL is 0 replaces it with
// nothing. All others leave the cache as it is.
func (c *Cache) Put(key []byte, m *dns.Msg) (*Entry, error) {
	r, err := sections(m)
	if err != nil {
		return nil, err
	}
	v, ttls := classify(m, r), r.ttls()
	if !c.policy.covers(key) {
		v = uncacheable
	}
	kind, life := c.policy.lifetime(v, r, ttls)
	e, err := pack(m, r, ttls)
	if err != nil || v == uncacheable || !e.adoptKey(key) {
		return e, err
	}
	e.kind, e.ttl = kind, life
	c.replace(key, e)
	return e, nil
}

// lifetime clamps ttls and returns how many seconds the answer is fresh.
func (p *policy) lifetime(v verdict, r *records, ttls []uint32) (Kind, uint32) {
	switch v {
	case positive:
		return Success, positiveTTL(r, ttls, p.classes[Success].bounds)
	case denial:
		return Denial, denialTTL(r, ttls, p.classes[Denial].bounds)
	default:
		return Success, 0
	}
}

// replace puts e in the place of what key has.
func (c *Cache) replace(key []byte, e *Entry) {
	hash := c.store.hash(key)
	set := c.set(hash)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()

	e.born = c.store.elapsed()
	e.used = e.born
	if old := set.data(hash, key); old != nil {
		e.hits = old.hits
		set.remove(old.kind, hash)
	}
	set.remove(Failure, hash)
	if e.ttl == 0 || !c.policy.keeps(e.kind, key) {
		e.ttl = 0
		return
	}
	set.remove(e.kind, hash)
	set.add(hash, e, c.policy.classes[e.kind].cap)
}

func (c *Cache) set(hash uint64) *binSet { return c.space.sets[c.store.shardOf(hash)] }

// find returns the data or denial of key that the policy lets be used, or nil.
func (c *Cache) find(set *binSet, hash uint64, key []byte) *Entry {
	e := set.data(hash, key)
	if e == nil || !c.policy.keeps(e.kind, key) {
		return nil
	}
	return e
}

// data returns the data or denial of key; there is at most one of them.
func (s *binSet) data(hash uint64, key []byte) *Entry {
	if e := s.find(Success, hash, key); e != nil {
		return e
	}
	return s.find(Denial, hash, key)
}

func (c *Cache) fresh(e *Entry, t time.Duration) Hit {
	e.touch(t, c.policy.prefetch.Duration)
	h := Hit{Entry: e, State: Fresh}
	if !c.policy.keepTTL {
		h.Age = e.age(t)
	}
	return h
}

// stale decides who asks upstream: nobody while a failure of the key is fresh.
func (c *Cache) stale(e *Entry, t time.Duration, failed bool) Hit {
	e.touch(t, c.policy.prefetch.Duration)
	h := Hit{Entry: e, State: Stale, Age: StaleAge}
	if !failed {
		h.Verify = c.policy.staleVerify
		h.Refresh = !h.Verify && e.claimRefresh()
	}
	return h
}

func (s *Store) elapsed() time.Duration { return s.now().Sub(s.start) }

func (e *Entry) expiry() time.Duration { return e.born + e.TTL() }

// age is how many whole seconds have passed since e was put. A query may have
// been stamped before.
func (e *Entry) age(t time.Duration) uint32 {
	return uint32(min(max(t-e.born, 0)/time.Second, time.Duration(StaleAge-1)))
}
