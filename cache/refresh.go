package cache

import "time"

// touch counts a look-up at t. The caller holds the shard's mutex.
func (e *Entry) touch(t, gap time.Duration) {
	if t-e.used > gap {
		e.hits = 0
	}
	if e.hits < ^uint32(0) {
		e.hits++
	}
	e.used = max(e.used, t)
}

// due reports whether e, fresh at t, is popular and about to expire.
func (p *Prefetch) due(e *Entry, t time.Duration) bool {
	if p.Amount <= 0 || uint64(e.hits) < uint64(p.Amount) {
		return false
	}
	last := max(e.TTL()/100*time.Duration(min(p.Percentage, 100)), time.Second)
	return e.expiry()-t <= last
}

// claimRefresh grants the refresh of e to one caller.
func (e *Entry) claimRefresh() bool { return e.refreshing.CompareAndSwap(false, true) }

// RefreshDone lets another caller refresh e, see Hit.Refresh.
func (e *Entry) RefreshDone() { e.refreshing.Store(false) }
