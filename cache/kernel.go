package cache

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/miekg/dns"
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

// Promote passes key's entry to the Copier if the entry is fresh and was not stored after
// the time seen, when the caller looked it up. Promote reads the entry into e. The entry
// does not change until Promote returns.
//
// If paired is true, the answer also depends on the entry of the name's other address
// type. That entry must meet the same conditions. The Kernel's copy expires when either
// entry expires, and is withdrawn when either is.
func (c *Cache) Promote(key []byte, paired bool, seen time.Time, e *Entry, to Copier) {
	hash, set := c.locate(key)
	sh := set.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	id, sl := c.seenSlot(set, hash, key, seen)
	if sl == nil {
		return
	}
	now, other := c.store.elapsed(), sl
	if paired {
		var unlock func()
		if other, unlock = c.lockOther(sh, key, seen); other == nil {
			return
		}
		defer unlock()
	}
	l := Lifetime{Age: now - time.Duration(sl.born), Left: min(sl.expiry(), other.expiry()) - now, KeepTTL: c.policy.keepTTL}
	l.Refresh = l.Left
	if c.policy.prefetch.Amount > 0 {
		l.Refresh = min(l.Refresh, sl.expiry()-now-c.policy.prefetch.before(sl))
	}
	sh.slab.read(id, e)
	if to.Copy(e, l) {
		sl.state |= stateKernel
		other.state |= stateKernel
	}
}

// seenSlot returns key's entry if it is fresh and was not stored after seen. The shard of
// set is locked.
func (c *Cache) seenSlot(set *binSet, hash uint32, key []byte, seen time.Time) (uint32, *slot) {
	id := set.find(Success, hash, key)
	if id == 0 {
		return 0, nil
	}
	sl := set.shard.slab.slot(id)
	if c.store.elapsed() >= sl.expiry() || time.Duration(sl.born) > seen.Sub(c.store.start) || !c.policy.keeps(sl.kind(), key) {
		return 0, nil
	}
	return id, sl
}

// lockOther returns the entry of key's other address type, as seenSlot does, and a
// function that unlocks its shard. The caller has locked the shard held. If the other
// shard is locked by another goroutine, lockOther returns nil: a later hit promotes.
func (c *Cache) lockOther(held *shard, key []byte, seen time.Time) (*slot, func()) {
	var buf [maxNameWire + keyTail]byte
	other := append(buf[:0], key...)
	if !switchType(other) {
		return nil, nil
	}
	hash, set := c.locate(other)
	unlock := func() {}
	if set.shard != held {
		if !set.shard.mu.TryLock() {
			return nil, nil
		}
		unlock = set.shard.mu.Unlock
	}
	_, sl := c.seenSlot(set, hash, other, seen)
	if sl == nil {
		unlock()
	}
	return sl, unlock
}

// switchType changes key to the name's other address type. It reports false if key's
// type is not an address type.
func switchType(key []byte) bool {
	at := len(key) - keyTail
	t := binary.BigEndian.Uint16(key[at:])
	if t != dns.TypeA && t != dns.TypeAAAA {
		return false
	}
	binary.BigEndian.PutUint16(key[at:], dns.TypeA+dns.TypeAAAA-t)
	return true
}

// withdraw removes an entry from the Kernel, and the copy that may depend on it.
func (sh *shard) withdraw(sl *slot) {
	sh.takeHits(sl)
	var buf [maxNameWire + keyTail]byte
	key := sh.slab.appendKey(buf[:0], sl)
	sh.kernel.Withdraw(key)
	if switchType(key) {
		sh.kernel.Withdraw(key)
	}
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
