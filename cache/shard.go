package cache

import (
	"slices"
	"sync"
	"time"
)

// shard is a part of a Store with its share of the byte budget. mu guards the
// shard and everything that it owns.
type shard struct {
	mu     sync.Mutex
	share  int64 // bytes
	slab   slab
	index  index
	sets   []*binSet // nil where an id was dropped
	small  uint32    // blocks of the entries in small queues
	kernel Kernel    // nil: no entry has stateKernel
	seq    uint32    // number of enqueued entries; only differences matter
}

// binSet holds the entries of one id in one shard.
type binSet struct {
	shard   *shard
	number  uint16 // index into shard.sets
	bins    [kinds]bin
	retired bool
}

// bin holds the entries of one kind, in the two queues of S3-FIFO. A new entry
// enters the small queue. It moves to the main queue if a lookup finds it while
// it is in the small one, or if its key returns soon after its eviction. An entry
// at the old end of the main queue that had a lookup starts again at the new end.
// So names with a single lookup cannot evict the others, and a lookup moves
// nothing.
type bin struct {
	small, main queue
	entries     int
	blocks      uint32
	evicted     Evictions
}

func (b *bin) queue(main bool) *queue {
	if main {
		return &b.main
	}
	return &b.small
}

// The small queues may hold 1/smallShare of a cap, or of a shard's blocks.
// Beyond that, entries are evicted from them, otherwise from the main queues.
const smallShare = 10

// maxFreq is where the lookup count of an entry saturates.
const maxFreq = 3

func (sl *slot) kind() Kind { return Kind(sl.state & stateKind >> kindShift) }

func (sl *slot) inMain() bool { return sl.state&stateMain != 0 }

func (sl *slot) expiry() time.Duration {
	return time.Duration(sl.born) + time.Duration(sl.ttl)*time.Second
}

// age returns the whole seconds since the entry was put. t may be earlier than
// that: a query takes its time on arrival.
func (sl *slot) age(t time.Duration) uint32 {
	return uint32(min(max(t-time.Duration(sl.born), 0)/time.Second, time.Duration(StaleAge-1)))
}

// kindHash makes the failure and the data of one key differ in the index.
var kindHash = [kinds]uint32{Failure: 0x85ebca6b}

// find returns the first block of key's failure if k is Failure, else of its data
// or denial. A key has at most one of each. 0 means none.
func (s *binSet) find(k Kind, hash uint32, key []byte) uint32 {
	x, q := &s.shard.index, len(key)-1
	if len(x.slots) == 0 || q < 0 {
		return 0
	}
	h, mask := hash^kindHash[k], uint32(len(x.slots)-1)
	for i := h & mask; x.slots[i] != 0; i = (i + 1) & mask {
		if uint32(x.slots[i]>>32) != h {
			continue
		}
		id := uint32(x.slots[i])
		sl := s.shard.slab.slot(id)
		if sl.set == s.number && (sl.kind() == Failure) == (k == Failure) && sl.key == key[q] && s.shard.slab.question(sl, key[:q]) {
			return id
		}
	}
	return 0
}

// count records a lookup for eviction.
func (sl *slot) count() {
	if sl.state&stateFreq < maxFreq {
		sl.state++
	}
}

// inherited is the state that an entry takes over from the one that it replaces.
type inherited struct {
	hits uint16
	freq byte
	main bool
}

func (sl *slot) inherited() inherited {
	return inherited{hits: sl.hits, freq: sl.state & stateFreq, main: sl.inMain()}
}

// add stores e, which was put at born. It evicts entries to stay within limit,
// the cap of the bin, and within the shard's share. The key must have no entry.
// add reports false if e cannot be stored.
func (s *binSet) add(hash uint32, e *Entry, born time.Duration, limit int, l inherited) bool {
	sh, b, need := s.shard, &s.bins[e.kind], blocksFor(len(e.buf))
	if s.retired || int64(need)*blockBytes+minSlots*slotBytes > sh.share {
		return false
	}
	hash ^= kindHash[e.kind]
	main := l.main || sh.index.takeGhost(hash) // before another ghost takes its place
	for b.entries >= limit {
		if sh.evictOrKeep(b, b.small.n*smallShare > limit || b.main.n == 0) {
			b.evicted.Cap++
		}
	}
	for !sh.hasRoom(need) {
		if sh.index.n == 0 {
			return false
		}
		if b, small := sh.nextVictim(); sh.evictOrKeep(b, small) {
			b.evicted.Budget++
		}
	}
	id := sh.slab.alloc(need)
	sl := sh.slab.slot(id)
	*sl = slot{more: sl.more, hash: hash, set: s.number, hits: l.hits, state: byte(e.kind)<<kindShift | l.freq}
	sh.slab.write(id, e, born)
	sh.index.add(hash, id)
	sh.enqueue(b, id, main, need)
	b.entries++
	b.blocks += need
	return true
}

// overwrite replaces entry id, which the Kernel must not have, with e, which must
// have its key and kind. It
// reports false, and does nothing, if e needs another number of blocks.
func (sh *shard) overwrite(id uint32, e *Entry, born time.Duration) bool {
	sl := sh.slab.slot(id)
	if blocksFor(int(sl.msgLen)+2*int(sl.records)) != blocksFor(len(e.buf)) {
		return false
	}
	sl.state &^= stateRefreshing | stateCut
	sh.slab.write(id, e, born)
	return true
}

// enqueue adds entry id, which has n blocks and is in no queue, to the newest end of
// a queue of b.
func (sh *shard) enqueue(b *bin, id uint32, main bool, n uint32) {
	q, sl := &b.small, sh.slab.slot(id)
	if main {
		q = &b.main
		sl.state |= stateMain
	} else {
		sh.small += n
		sl.state &^= stateMain
	}
	sh.seq++
	sl.seq, sl.prev, sl.next = sh.seq, q.newest, 0
	if q.newest != 0 {
		sh.slab.slot(q.newest).next = id
	} else {
		q.oldest = id
	}
	q.newest = id
	q.n++
}

// hasRoom reports whether n blocks and an index slot fit into the share. It grows
// the index if necessary.
func (sh *shard) hasRoom(n uint32) bool {
	x, used := &sh.index, max(sh.slab.top-1, sh.slab.used+n)
	slots := len(x.slots)
	if (x.n+1)*5 > slots*4 {
		slots = max(2*slots, minSlots)
	}
	if int64(used)*blockBytes+int64(slots)*slotBytes > sh.share {
		return false
	}
	if slots > len(x.slots) {
		x.grow(slots)
	}
	return true
}

// resident returns the bytes of memory that the shard uses.
func (sh *shard) resident() int64 { return sh.slab.resident() + sh.index.bytes() }

// nextVictim returns the bin to evict from, and whether from its small queue. The
// shard must have entries.
func (sh *shard) nextVictim() (*bin, bool) {
	for _, small := range [2]bool{sh.small*smallShare > sh.slab.used, true} {
		if b := sh.oldestOf(!small); b != nil {
			return b, small
		}
	}
	return sh.oldestOf(true), false
}

func (sh *shard) oldestOf(main bool) *bin {
	var found *bin
	var age uint32
	for _, set := range sh.sets {
		if set == nil {
			continue
		}
		for k := range set.bins {
			q := set.bins[k].queue(main)
			if q.n == 0 {
				continue
			}
			if a := sh.seq - sh.slab.slot(q.oldest).seq; found == nil || a > age {
				found, age = &set.bins[k], a
			}
		}
	}
	return found
}

// evictOrKeep evicts the oldest entry of a queue of b, which must have one, or
// moves it to the new end of the main queue. It reports whether it evicted.
func (sh *shard) evictOrKeep(b *bin, small bool) bool {
	id := b.queue(!small).oldest
	sl := sh.slab.slot(id)
	if sl.state&stateKernel != 0 {
		sh.takeHits(sl)
	}
	if sl.state&stateFreq == 0 {
		if small {
			sh.index.addGhost(sl.hash)
		}
		sh.drop(id)
		return true
	}
	n := sh.dequeue(id)
	if small {
		sl.state &^= stateFreq
	} else {
		sl.state--
	}
	sh.enqueue(b, id, true, n)
	return false
}

// dequeue removes entry id from its queue and returns its number of blocks.
func (sh *shard) dequeue(id uint32) uint32 {
	sl := sh.slab.slot(id)
	n := blocksFor(int(sl.msgLen) + 2*int(sl.records))
	sh.binOf(sl).queue(sl.inMain()).remove(&sh.slab, id)
	if !sl.inMain() {
		sh.small -= n
	}
	return n
}

func (sh *shard) binOf(sl *slot) *bin { return &sh.sets[sl.set].bins[sl.kind()] }

// drop removes entry id and frees its blocks.
func (sh *shard) drop(id uint32) {
	sl := sh.slab.slot(id)
	if sl.state&stateKernel != 0 {
		sh.withdraw(sl)
	}
	b := sh.binOf(sl)
	b.entries--
	b.blocks -= sh.dequeue(id)
	sh.index.remove(sl.hash, id)
	sh.slab.freeChain(id)
}

// addSet adds the bins of an id.
func (sh *shard) addSet() *binSet {
	set := &binSet{shard: sh}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := slices.Index(sh.sets, nil)
	if i < 0 {
		i = len(sh.sets)
		sh.sets = append(sh.sets, nil)
	}
	if set.number = uint16(i); int(set.number) != i {
		sh.sets = sh.sets[:i]
		set.retired = true // no number is left for this id: nothing is cached
		return set
	}
	sh.sets[i] = set
	return set
}

func (sh *shard) dropSet(set *binSet) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if set.retired {
		return
	}
	set.retired = true
	for k := range set.bins {
		b := &set.bins[k]
		for b.entries > 0 {
			sh.drop(max(b.small.oldest, b.main.oldest))
		}
	}
	sh.sets[set.number] = nil
	if sh.index.n == 0 {
		sh.index = index{}
		sh.slab.free = 0
		sh.slab.truncate(1)
	}
}

// index finds entries by hash, with open addressing and linear probing. A slot
// holds the hash in its upper half and the number of the entry's first block in
// its lower half; 0 is empty. The ghosts are the upper 16 bits of the hash, made
// odd, of entries that were evicted before their second lookup. A new ghost overwrites the old one in
// its place.
type index struct {
	slots  []uint64 // the length is a power of two
	ghosts []uint16 // as many as slots
	n      int      // entries
}

const (
	minSlots  = 16
	slotBytes = 8 + 2
)

func (x *index) bytes() int64 { return int64(len(x.slots)) * slotBytes }

// grow replaces the table with one of twice the size, or the first one.
func (x *index) grow(slots int) {
	ghosts := x.ghosts
	x.rebuild(slots)
	for i, g := range ghosts { // one bit of the position is unknown: fill both
		x.ghosts[i], x.ghosts[i+len(ghosts)] = g, g
	}
}

// rebuild moves the entries to a table of the given size. It loses the ghosts.
func (x *index) rebuild(slots int) {
	old := x.slots
	*x = index{slots: make([]uint64, slots), ghosts: make([]uint16, slots)}
	for _, s := range old {
		if s != 0 {
			x.add(uint32(s>>32), uint32(s))
		}
	}
}

// minBytes is the size of the smallest table for the present entries.
func (x *index) minBytes() int64 {
	if x.n == 0 {
		return 0
	}
	slots := minSlots
	for x.n*5 > slots*4 {
		slots *= 2
	}
	return int64(slots) * slotBytes
}

// shrink replaces the table with the smallest one. Shrinking loses the ghosts.
func (x *index) shrink() {
	if x.minBytes() == x.bytes() {
		return
	}
	x.rebuild(int(x.minBytes() / slotBytes))
}

// add adds an entry, for which there must be a slot.
func (x *index) add(hash, id uint32) {
	mask := uint32(len(x.slots) - 1)
	i := hash & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = uint64(hash)<<32 | uint64(id)
	x.n++
}

// position returns the slot of an entry, which must exist.
func (x *index) position(hash, id uint32) uint32 {
	mask, want := uint32(len(x.slots)-1), uint64(hash)<<32|uint64(id)
	i := hash & mask
	for x.slots[i] != want {
		i = (i + 1) & mask
	}
	return i
}

// remove moves later slots into the gap, so that no probe ends early.
func (x *index) remove(hash, id uint32) {
	mask := uint32(len(x.slots) - 1)
	gap := x.position(hash, id)
	for i := (gap + 1) & mask; x.slots[i] != 0; i = (i + 1) & mask {
		home := uint32(x.slots[i]>>32) & mask
		if (i-home)&mask >= (i-gap)&mask {
			x.slots[gap] = x.slots[i]
			gap = i
		}
	}
	x.slots[gap] = 0
	x.n--
}

// takeGhost reports whether hash has a ghost, and removes it.
func (x *index) takeGhost(hash uint32) bool {
	if len(x.ghosts) == 0 {
		return false
	}
	g := &x.ghosts[hash&uint32(len(x.ghosts)-1)]
	if *g != uint16(hash>>16)|1 {
		return false
	}
	*g = 0
	return true
}

// addGhost records that the entry of hash was evicted.
func (x *index) addGhost(hash uint32) {
	x.ghosts[hash&uint32(len(x.ghosts)-1)] = uint16(hash>>16) | 1
}

// queue is a linked list of entries in the order of arrival.
type queue struct {
	oldest, newest uint32
	n              int
}

func (q *queue) remove(s *slab, id uint32) {
	sl := s.slot(id)
	q.link(s, sl.prev, sl.next)
	q.n--
}

// link makes next follow prev; 0 stands for an end.
func (q *queue) link(s *slab, prev, next uint32) {
	if prev != 0 {
		s.slot(prev).next = next
	} else {
		q.oldest = next
	}
	if next != 0 {
		s.slot(next).prev = prev
	} else {
		q.newest = prev
	}
}

// relink updates the links to an entry after its first block moved to id.
func (q *queue) relink(s *slab, id uint32) {
	sl := s.slot(id)
	if sl.prev != 0 {
		s.slot(sl.prev).next = id
	} else {
		q.oldest = id
	}
	if sl.next != 0 {
		s.slot(sl.next).prev = id
	} else {
		q.newest = id
	}
}
