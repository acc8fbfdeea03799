package cache

import (
	"time"

	"github.com/miekg/dns"
)

// RFC 9520 §3.2: at least a second, at most five minutes.
const (
	minFailure = 1
	maxFailure = 300
)

func failureSeconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return min(max(seconds(d), minFailure), maxFailure)
}

// PutFailure remembers that key could not be resolved and returns the entry to
// answer from, made from m, the SERVFAIL to send. The first failure is kept for
// a second; each that follows within five minutes of the last one's end, without
// a successful Put between, twice as long, up to Policy.ServFail. Data and
// denials are not touched: they are found before failures. As with Put, m is
// not modified and an error means that it has no wire format.
func (c *Cache) PutFailure(key []byte, m *dns.Msg) (*Entry, error) {
	e, err := NewEntry(m)
	if err != nil || c.policy.servFail == 0 || !e.adoptKey(key) {
		return e, err
	}
	e.kind = Failure
	hash := c.store.hash(key)
	set := c.set(hash)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()

	t := c.store.elapsed()
	e.ttl = minFailure
	if id := set.find(Failure, hash, key); id != 0 {
		old := set.shard.slab.slot(id)
		if t < old.expiry() {
			return e, nil // one outage seen twice
		}
		if t < old.expiry()+maxFailure*time.Second {
			e.ttl = min(2*old.ttl, c.policy.servFail)
		}
		set.shard.drop(id)
	}
	if !set.add(hash, e, t, c.policy.classes[Failure].cap, legacy{}) {
		e.ttl = 0
	}
	return e, nil
}

// liveFailure returns the block of the failure of key that is not to be retried
// at t, or 0. An ended one stays, it carries the back-off.
func (c *Cache) liveFailure(set *binSet, hash uint64, key []byte, t time.Duration) uint32 {
	if c.policy.servFail == 0 {
		return 0
	}
	if id := set.find(Failure, hash, key); id != 0 && t < set.shard.slab.slot(id).expiry() {
		return id
	}
	return 0
}
