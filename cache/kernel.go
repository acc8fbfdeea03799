package cache

import (
	"math"
	"time"
)

// Kernel answers queries with copies of entries. What it holds is a subset of the
// Store: before an entry changes or goes, the Store withdraws it. The methods are
// called while a shard is locked, so they must not call the Store.
type Kernel interface {
	// Withdraw removes all copies of key's entry. Queries that arrive after its
	// return are not answered with them.
	Withdraw(key []byte)
	// Hits returns about how many queries the kernel has answered with key's entry
	// since the last call.
	Hits(key []byte) uint32
}

// Copier gives an entry to the Kernel, see Cache.Promote.
type Copier interface {
	// Copy reports whether the Kernel has the entry now. It must not keep e.
	Copy(e *Entry, l Lifetime) bool
}

// Lifetime is the age of an entry, with the times from now until it expires and
// until a query for it must come to the Cache so that it is refreshed.
type Lifetime struct {
	Age, Left, Refresh time.Duration
	KeepTTL            bool // TTLs do not count down
}

// Promote lets c copy key's entry to the Kernel if it is fresh and was not stored after
// the time seen, when the caller looked it up. It reads the entry into e, and blocks
// changes of the entry meanwhile.
func (c *Cache) Promote(key []byte, seen time.Time, e *Entry, to Copier) {
	hash, set := c.locate(key)
	sh := set.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	id := set.find(Success, hash, key)
	if id == 0 {
		return
	}
	sl, now := sh.slab.slot(id), c.store.elapsed()
	if now >= sl.expiry() || time.Duration(sl.born) > seen.Sub(c.store.start) || !c.policy.keeps(sl.kind(), key) {
		return
	}
	l := Lifetime{Age: now - time.Duration(sl.born), Left: sl.expiry() - now, KeepTTL: c.policy.keepTTL}
	l.Refresh = l.Left
	if c.policy.prefetch.Amount > 0 {
		l.Refresh -= c.policy.prefetch.before(sl)
	}
	sh.slab.read(id, e)
	if to.Copy(e, l) {
		sl.state |= stateKernel
	}
}

// withdraw removes an entry from the Kernel.
func (sh *shard) withdraw(sl *slot) {
	sh.takeHits(sl)
	var buf [maxNameWire + keyTail]byte
	sh.kernel.Withdraw(sh.slab.appendKey(buf[:0], sl))
	sl.state &^= stateKernel
}

// takeHits adds the Kernel's lookups of an entry to those of the Cache. It reports whether
// there are any.
func (sh *shard) takeHits(sl *slot) bool {
	var buf [maxNameWire + keyTail]byte
	n := sh.kernel.Hits(sh.slab.appendKey(buf[:0], sl))
	if n == 0 {
		return false
	}
	sl.hits = uint16(min(uint32(sl.hits)+n, math.MaxUint16))
	sl.state |= stateFreq // maxFreq
	return true
}

// appendKey appends the key of an entry.
func (s *slab) appendKey(dst []byte, sl *slot) []byte {
	end := 0
	for next := sl.more; end == 0; {
		b := s.block(next)
		dst = append(dst, b.data[:]...)
		if q := skipName(dst, 0); q > 0 && q+4 <= len(dst) {
			end = q + 4
		}
		if next = b.more; next == 0 && end == 0 {
			end = len(dst) // cannot happen: every entry has a question
		}
	}
	return append(dst[:end], sl.key)
}
