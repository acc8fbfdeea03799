package cache

import (
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// shard is a part of a Store with its share of the byte budget. All that hangs
// below it is guarded by mu.
type shard struct {
	mu    sync.Mutex
	share int64
	used  int64
	sets  []*binSet
}

// binSet is what one id owns in one shard.
type binSet struct {
	shard   *shard
	bins    [kinds]bin
	retired bool
}

// bin keeps the entries of one kind, keyed by the hash of their key. Two keys
// with one hash evict each other.
type bin struct {
	lru     *simplelru.LRU[uint64, *Entry]
	bytes   int64
	evicted Evictions
}

// nodeBytes is what an entry takes besides its buffer: the Entry, the list node
// of the LRU and its part of the LRU's map (8 octets each of hash and pointer,
// one of control, tables filled by two thirds on average).
const nodeBytes = int64(unsafe.Sizeof(Entry{})) + 80 + 26

// size returns the octets that keeping e takes. Slices grow to the size class
// of the allocator, so the capacity is what is allocated.
func (e *Entry) size() int64 { return nodeBytes + int64(cap(e.buf)) }

func newBin() bin {
	// A positive size is the only error; bins are bounded by add.
	lru, _ := simplelru.NewLRU[uint64, *Entry](math.MaxInt, nil)
	return bin{lru: lru}
}

func (sh *shard) addSet() *binSet {
	set := &binSet{shard: sh}
	for k := range set.bins {
		set.bins[k] = newBin()
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sets = append(sh.sets, set)
	return set
}

func (sh *shard) dropSet(set *binSet) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	set.retired = true
	for k := range set.bins {
		sh.used -= set.bins[k].bytes
		set.bins[k] = newBin()
	}
	sh.sets = slices.DeleteFunc(sh.sets, func(s *binSet) bool { return s == set })
}

// find returns the entry of key and makes it the most recently used, or nil.
func (s *binSet) find(k Kind, hash uint64, key []byte) *Entry {
	if e, ok := s.bins[k].lru.Get(hash); ok && e.matches(key) {
		return e
	}
	return nil
}

// add keeps e, which nobody else knows yet, evicting what the cap of its bin and
// the share of the shard require. Nothing is kept under hash in that bin before.
// An entry that cannot be kept loses its TTL.
func (s *binSet) add(hash uint64, e *Entry, limit int) {
	b := &s.bins[e.kind]
	if s.retired || e.size() > s.shard.share {
		e.ttl = 0
		return
	}
	for b.lru.Len() >= limit {
		b.evicted.Cap++
		s.shard.evictFrom(b)
	}
	for s.shard.used+e.size() > s.shard.share {
		oldest := s.shard.oldestBin()
		oldest.evicted.Budget++
		s.shard.evictFrom(oldest)
	}
	b.lru.Add(hash, e)
	b.bytes += e.size()
	s.shard.used += e.size()
}

// remove drops what is kept under hash, if anything.
func (s *binSet) remove(k Kind, hash uint64) {
	b := &s.bins[k]
	if e, ok := b.lru.Peek(hash); ok {
		b.lru.Remove(hash)
		s.shard.release(b, e)
	}
}

func (sh *shard) evictFrom(b *bin) {
	if _, e, ok := b.lru.RemoveOldest(); ok {
		sh.release(b, e)
	}
}

func (sh *shard) release(b *bin, e *Entry) {
	b.bytes -= e.size()
	sh.used -= e.size()
}

// oldestBin returns the bin whose least recently used entry is the least
// recently used of the shard, which must not be empty.
func (sh *shard) oldestBin() *bin {
	var oldest *bin
	var used = int64(math.MaxInt64)
	for _, set := range sh.sets {
		for k := range set.bins {
			b := &set.bins[k]
			if _, e, ok := b.lru.GetOldest(); ok && int64(e.used) < used {
				oldest, used = b, int64(e.used)
			}
		}
	}
	return oldest
}
