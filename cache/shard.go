package cache

import (
	"slices"
	"sync"
	"time"
)

// shard is a part of a Store with its share of the byte budget. All that hangs
// below it is guarded by mu.
type shard struct {
	mu    sync.Mutex
	share int64
	slab  slab
	index index
	sets  []*binSet // nil where one was dropped
	small uint32    // blocks of the entries in small queues
	seq   uint32    // counts what joins a queue; only differences matter
}

// binSet is what one id owns in one shard.
type binSet struct {
	shard   *shard
	number  uint16 // index into shard.sets
	bins    [kinds]bin
	retired bool
}

// bin is the entries of one kind, in the two queues of S3-FIFO: new ones are in
// the small queue, and those that were asked for again while they went through
// it, or that come back soon after they were dropped from it, are in the main
// one. An entry that reaches the old end of the main queue and was asked for
// begins anew. So names that are asked for once cannot push out the others, and
// a look-up moves nothing.
type bin struct {
	small, main queue
	blocks      uint32
	evicted     Evictions
}

func (b *bin) len() int { return b.small.n + b.main.n }

func (b *bin) queue(main bool) *queue {
	if main {
		return &b.main
	}
	return &b.small
}

// smallShare is the part of an id's entries, or of the blocks of a shard, that
// the small queues may hold before the main ones have to give.
const smallShare = 10

// mostFreq is where counting the look-ups of an entry ends.
const mostFreq = 3

func (sl *slot) kind() Kind { return Kind(sl.state & stateKind >> kindShift) }

func (sl *slot) inMain() bool { return sl.state&stateMain != 0 }

func (sl *slot) expiry() time.Duration {
	return time.Duration(sl.born) + time.Duration(sl.ttl)*time.Second
}

// age is how many whole seconds have passed since the entry was put. A query
// may have been stamped before.
func (sl *slot) age(t time.Duration) uint32 {
	return uint32(min(max(t-time.Duration(sl.born), 0)/time.Second, time.Duration(StaleAge-1)))
}

// hashOf is what the index has of an entry. Ids, and failures beside data, are
// kept apart by it.
func (s *binSet) hashOf(k Kind, hash uint64) uint32 {
	h := uint32(hash) + uint32(s.number)*0x9e3779b1
	if k == Failure {
		h ^= 0x85ebca6b
	}
	return h
}

// find returns the block of the failure of key, or of its data or denial, of
// which there is at most one; 0 if there is none.
func (s *binSet) find(k Kind, hash uint64, key []byte) uint32 {
	x, q := &s.shard.index, len(key)-1
	if len(x.slots) == 0 || q < 0 {
		return 0
	}
	h, mask := s.hashOf(k, hash), uint32(len(x.slots)-1)
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

// count notes a look-up.
func (sl *slot) count() {
	if sl.state&stateFreq < mostFreq {
		sl.state++
	}
}

// legacy is what an entry inherits from the one that it replaces.
type legacy struct {
	hits uint16
	freq byte
	main bool
}

func (sl *slot) legacy() legacy {
	return legacy{hits: sl.hits, freq: sl.state & stateFreq, main: sl.inMain()}
}

// add keeps e, which was put at born, evicting what limit, the cap of its bin,
// and the share of the shard require. Its key must not be there. It reports
// false if e cannot be kept.
func (s *binSet) add(hash uint64, e *Entry, born time.Duration, limit int, l legacy) bool {
	sh, b, need := s.shard, &s.bins[e.kind], blocksFor(len(e.buf))
	if s.retired || int64(need)*blockBytes+minSlots*slotBytes > sh.share {
		return false
	}
	h := s.hashOf(e.kind, hash)
	main := l.main || sh.index.haunted(h)
	for b.len() >= limit {
		if sh.judge(b, b.small.n*smallShare > limit || b.main.n == 0) {
			b.evicted.Cap++
		}
	}
	if !sh.makeRoom(need) {
		return false
	}
	id := sh.slab.chain(need)
	sl := sh.slab.slot(id)
	*sl = slot{more: sl.more, hash: h, set: s.number, hits: l.hits, state: byte(e.kind)<<kindShift | l.freq}
	sh.fill(id, e, born)
	sh.join(b, id, main, need)
	b.blocks += need
	sh.index.add(h, id)
	return true
}

// fill writes what e says into its blocks.
func (sh *shard) fill(id uint32, e *Entry, born time.Duration) {
	sl := sh.slab.slot(id)
	sl.born, sl.used = int64(born), int64(born)
	sl.ttl, sl.msgLen, sl.rcode, sl.key = e.ttl, e.msgLen, e.rcode, e.flags
	sl.records = uint16(e.records())
	sh.slab.write(id, e.buf)
}

// overwrite puts e in the place of the entry id, whose key and kind it has, if
// it takes as many blocks.
func (sh *shard) overwrite(id uint32, e *Entry, born time.Duration) bool {
	sl := sh.slab.slot(id)
	if blocksFor(int(sl.msgLen)+2*int(sl.records)) != blocksFor(len(e.buf)) {
		return false
	}
	sl.state &^= stateRefreshing
	sh.fill(id, e, born)
	return true
}

// join puts id, which takes n blocks and is in no queue, into one of b's.
func (sh *shard) join(b *bin, id uint32, main bool, n uint32) {
	sl := sh.slab.slot(id)
	sl.state &^= stateMain
	if main {
		sl.state |= stateMain
	} else {
		sh.small += n
	}
	sh.seq++
	sl.seq = sh.seq
	b.queue(main).push(&sh.slab, id)
}

// makeRoom evicts until n blocks and a place in the index are to be had within
// the share. It reports false if that cannot be.
func (sh *shard) makeRoom(n uint32) bool {
	for !sh.hasRoom(n) {
		if sh.index.n == 0 {
			return false
		}
		if b, small := sh.oldest(); sh.judge(b, small) {
			b.evicted.Budget++
		}
	}
	return true
}

// hasRoom reports whether n blocks and a place in the index, which may grow for
// it, are to be had within the share.
func (sh *shard) hasRoom(n uint32) bool {
	index := sh.index.bytes()
	if sh.index.full() {
		index = sh.index.grown()
	}
	if int64(sh.slab.rises(n))*blockBytes+sh.slab.bytes()+index > sh.share {
		return false
	}
	if sh.index.full() {
		sh.index.grow()
	}
	return true
}

// real is the memory that the shard takes.
func (sh *shard) real() int64 { return sh.slab.real() + sh.index.bytes() }

// oldest returns the bin whose entry is to be judged next in a shard that has
// entries, and of which queue.
func (sh *shard) oldest() (*bin, bool) {
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

// judge drops the oldest entry of one of b's queues, which has some, or lets it
// live on in the main one. It reports whether it dropped it.
func (sh *shard) judge(b *bin, small bool) bool {
	id := b.queue(!small).oldest
	sl := sh.slab.slot(id)
	if sl.state&stateFreq == 0 {
		if small {
			sh.index.haunt(sl.hash)
		}
		sh.drop(id)
		return true
	}
	n := sh.leave(id)
	if small {
		sl.state &^= stateFreq
	} else {
		sl.state--
	}
	sh.join(b, id, true, n)
	return false
}

// leave takes id out of its queue and returns its number of blocks.
func (sh *shard) leave(id uint32) uint32 {
	sl := sh.slab.slot(id)
	n := blocksFor(int(sl.msgLen) + 2*int(sl.records))
	sh.binOf(sl).queue(sl.inMain()).remove(&sh.slab, id)
	if !sl.inMain() {
		sh.small -= n
	}
	return n
}

func (sh *shard) binOf(sl *slot) *bin { return &sh.sets[sl.set].bins[sl.kind()] }

// drop forgets an entry.
func (sh *shard) drop(id uint32) {
	sl := sh.slab.slot(id)
	b := sh.binOf(sl)
	b.blocks -= sh.leave(id)
	sh.index.remove(sl.hash, id)
	sh.slab.release(id)
}

// addSet makes the bins of an id.
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
		set.retired = true // more zones than can be told apart: not cached
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
		for b.len() > 0 {
			sh.drop(max(b.small.oldest, b.main.oldest))
		}
	}
	sh.sets[set.number] = nil
	if sh.index.n == 0 {
		sh.index = index{}
		sh.slab.free = 0
		sh.slab.forget(1)
	}
}

// read fills e with the entry id.
func (sh *shard) read(id uint32, e *Entry) {
	sl := sh.slab.slot(id)
	e.ttl, e.msgLen, e.rcode, e.kind, e.flags = sl.ttl, sl.msgLen, sl.rcode, sl.kind(), sl.key
	e.buf = sh.slab.read(e.buf[:0], id, int(sl.msgLen)+2*int(sl.records))
}
