package cache

import (
	"time"

	"github.com/miekg/dns"
)

// Bounds in seconds (RFC 9520 §3.2).
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

// ForgetFailures ends all failures stored so far: an upstream has returned.
func (s *Store) ForgetFailures() { s.failures.Store(int64(s.elapsed()) + 1) }

// counts reports whether the failure in sl was stored after ForgetFailures.
func (s *Store) counts(sl *slot) bool { return sl.born >= s.failures.Load() }

// PutFailure records that key could not be resolved and returns the entry to
// reply from, made from m, the SERVFAIL to send. The first failure is cached for
// 1 s. Each failure within 5 minutes of the previous one's expiry, without a
// stored answer in between, is cached twice as long, up to Policy.ServFail. Data
// and denials stay and take precedence. PutFailure fails only if m has no wire
// format. It does not modify m.
func (c *Cache) PutFailure(key []byte, m *dns.Msg) (*Entry, error) {
	e, err := NewEntry(m)
	if err != nil || c.policy.servFail == 0 || !e.setKey(key) {
		return e, err
	}
	e.kind = Failure
	hash, set := c.locate(key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()

	t := c.store.elapsed()
	e.ttl = minFailure
	if id := set.find(Failure, hash, key); id != 0 {
		old := set.shard.slab.slot(id)
		counts := c.store.counts(old)
		if counts && t < old.expiry() {
			return e, nil // the same outage again
		}
		if counts && t < old.expiry()+maxFailure*time.Second {
			e.ttl = min(2*old.ttl, c.policy.servFail)
		}
		set.shard.drop(id)
	}
	if !set.add(hash, e, t, c.policy.classes[Failure].cap, inherited{}) {
		e.ttl = 0
	}
	return e, nil
}
