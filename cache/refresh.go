package cache

import (
	"math"
	"time"
)

// touch counts a lookup at t for prefetching. The caller holds the shard's
// mutex.
func (sl *slot) touch(t, gap time.Duration) {
	if t-time.Duration(sl.used) > gap {
		sl.hits = 0
	}
	if sl.hits < math.MaxUint16 {
		sl.hits++
	}
	sl.used = max(sl.used, int64(t))
}

// due reports whether an entry that is fresh at t is popular and about to expire.
func (p *Prefetch) due(sl *slot, t time.Duration) bool {
	if int(sl.hits) < min(p.Amount, math.MaxUint16) {
		return false
	}
	return sl.expiry()-t <= p.before(sl)
}

// before returns how long before its expiry an entry is about to expire.
func (p *Prefetch) before(sl *slot) time.Duration {
	life := time.Duration(sl.ttl) * time.Second
	return max(life/100*time.Duration(min(p.Percentage, 100)), time.Second)
}

// claimRefresh reports whether the caller may refresh the entry: one at a time.
func (sl *slot) claimRefresh() bool {
	if sl.state&stateRefreshing != 0 {
		return false
	}
	sl.state |= stateRefreshing
	return true
}

// RefreshDone allows the next refresh of key, see Hit.Refresh.
func (c *Cache) RefreshDone(key []byte) {
	hash, set := c.locate(key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	if id := set.find(Success, hash, key); id != 0 {
		set.shard.slab.slot(id).state &^= stateRefreshing
	}
}
