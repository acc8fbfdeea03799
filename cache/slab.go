package cache

import (
	"math"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockBytes is the size of a block: one CPU cache line.
const blockBytes = 64

// slab allocates blocks outside the Go heap, so that entries cost the garbage
// collector nothing and returned memory goes to the host at once. A block is
// identified by its number; 0 is none. The memory is mapped in one piece and
// becomes resident when blocks are used for the first time.
type slab struct {
	mem  []byte
	free uint32 // head of the free list
	top  uint32 // no block from here on has ever been used
	used uint32 // blocks in use
	huge int    // bytes of mem for which huge pages are requested
}

// Lookups among many names access memory at random, and TLB misses dominate their
// cost. Among a million names, a lookup takes three times as long with 4 KiB pages
// as with huge pages. Huge pages would waste memory in a small cache. So a slab
// switches to them when it reaches hugeFrom blocks.
const (
	hugePage = 2 << 20
	hugeFrom = 2 * hugePage / blockBytes
)

// block is any block of an entry but the first.
type block struct {
	more uint32 // the next block
	data [blockBytes - 4]byte
}

// slot is the first block of an entry. It holds the header of the message, so
// that the question begins with the second block.
type slot struct {
	born int64 // nanoseconds since the start of the Store
	used int64 // last lookup that counted for prefetching, same unit

	more       uint32 // the second block
	prev, next uint32 // in its queue, towards the old and the new end
	seq        uint32 // shard.seq when it entered the queue
	ttl        uint32 // seconds
	hash       uint32 // see binSet.hashOf

	msgLen  uint16
	records uint16
	rcode   uint16
	hits    uint16 // lookups without a long gap, see slot.touch
	set     uint16 // index into shard.sets

	key   byte // flags of the key
	state byte // bits below
	head  [headerLen]byte
}

// Bits of slot.state.
const (
	stateFreq       = 3      // lookups since it entered its queue, up to maxFreq
	stateKind       = 3 << 2 // Kind
	stateMain       = 1 << 4 // it is in the main queue
	stateRefreshing = 1 << 5 // a caller is refreshing it
	stateCut        = 1 << 6 // see MarkCut
	stateKernel     = 1 << 7 // the Kernel may have it
	kindShift       = 2
)

// Both must have the size of a block, or this does not compile.
const (
	_ = -(unsafe.Sizeof(slot{}) ^ blockBytes)
	_ = -(unsafe.Sizeof(block{}) ^ blockBytes)
)

// newSlab maps the given number of bytes. They are unmapped when owner becomes
// unreachable.
func newSlab[T any](bytes int64, owner *T) slab {
	// Block numbers have 32 bits, and the last one stays unused.
	bytes = min(max(bytes, 2*blockBytes), (math.MaxUint32-1)*blockBytes)
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		// The host refuses the mapping (RLIMIT_AS, strict overcommit).
		return slab{mem: make([]byte, bytes), top: 1}
	}
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	runtime.AddCleanup(owner, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return slab{mem: mem, top: 1}
}

func (s *slab) slot(id uint32) *slot {
	return (*slot)(unsafe.Pointer(&s.mem[int(id)*blockBytes : int(id)*blockBytes+blockBytes][0]))
}

func (s *slab) block(id uint32) *block {
	return (*block)(unsafe.Pointer(&s.mem[int(id)*blockBytes : int(id)*blockBytes+blockBytes][0]))
}

// blocksFor returns the number of blocks for an entry of n bytes.
func blocksFor(n int) uint32 {
	const data = blockBytes - 4
	return 1 + uint32(max(n-headerLen, 1)+data-1)/data
}

// alloc returns the first of n linked blocks, n at least 2. Their content is
// undefined. The caller must know that they are available.
func (s *slab) alloc(n uint32) (first uint32) {
	link := &first
	for i := range n {
		id := s.free
		if id != 0 {
			s.free = s.block(id).more
		} else {
			id = s.top
			if s.top++; s.top == hugeFrom {
				s.useHugePages()
			}
		}
		if *link = id; i == 0 {
			link = &s.slot(id).more
		} else {
			link = &s.block(id).more
		}
	}
	*link = 0
	s.used += n
	return first
}

// useHugePages requests huge pages, except for the last eighth of mem: the index
// takes that part of the share, and no huge page may reach into it.
func (s *slab) useHugePages() {
	end := len(s.mem) / 8 * 7 / hugePage * hugePage
	if end > 0 && unix.Madvise(s.mem[:end], unix.MADV_HUGEPAGE) == nil {
		s.huge = end
	}
}

func (s *slab) freeBlock(id uint32) {
	s.block(id).more = s.free
	s.free = id
	s.used--
}

// bytes returns how much of the mapping has been used.
func (s *slab) bytes() int64 { return int64(s.top-1) * blockBytes }

// resident returns how much of the mapping is resident.
func (s *slab) resident() int64 {
	n := s.bytes()
	if n < int64(s.huge) {
		n = (n + hugePage - 1) / hugePage * hugePage
	}
	return n
}

// write copies e, which was put at born, to the blocks of entry id. There must be
// enough of them.
func (s *slab) write(id uint32, e *Entry, born time.Duration) {
	sl := s.slot(id)
	sl.born, sl.used = int64(born), int64(born)
	sl.ttl, sl.msgLen, sl.rcode, sl.key = e.ttl, e.msgLen, e.rcode, e.flags
	sl.records = uint16((len(e.buf) - int(e.msgLen)) / 2)
	n := copy(sl.head[:], e.buf)
	for next := sl.more; n < len(e.buf); {
		b := s.block(next)
		n += copy(b.data[:], e.buf[n:])
		next = b.more
	}
}

// read copies entry id to e.
func (s *slab) read(id uint32, e *Entry) {
	sl := s.slot(id)
	e.ttl, e.msgLen, e.rcode, e.kind, e.flags = sl.ttl, sl.msgLen, sl.rcode, sl.kind(), sl.key
	n := int(sl.msgLen) + 2*int(sl.records)
	k := min(n, headerLen)
	buf := append(e.buf[:0], sl.head[:k]...)
	for next := sl.more; k < n; {
		b := s.block(next)
		part := min(n-k, len(b.data))
		buf = append(buf, b.data[:part]...)
		k += part
		next = b.more
	}
	e.buf = buf
}

// question reports whether q follows the header of an entry.
func (s *slab) question(sl *slot, q []byte) bool {
	if int(sl.msgLen) < headerLen+len(q) {
		return false
	}
	for next := sl.more; ; {
		b := s.block(next)
		part := min(len(q), len(b.data))
		if string(b.data[:part]) != string(q[:part]) {
			return false
		}
		if q = q[part:]; len(q) == 0 {
			return true
		}
		next = b.more
	}
}

// freeChain frees all blocks of an entry.
func (s *slab) freeChain(id uint32) {
	next := s.slot(id).more
	s.freeBlock(id)
	for next != 0 {
		id, next = next, s.block(next).more
		s.freeBlock(id)
	}
}

// truncate returns the memory from block top on to the host. No block from there
// on may be in use or in the free list. It gives up huge pages, because they can
// only be returned whole.
func (s *slab) truncate(top uint32) {
	s.top = top
	if s.huge > 0 && unix.Madvise(s.mem[:s.huge], unix.MADV_NOHUGEPAGE) == nil {
		s.huge = 0
	}
	page := unix.Getpagesize()
	from := (int(top)*blockBytes + page - 1) / page * page
	if from < len(s.mem) {
		_ = unix.Madvise(s.mem[from:], unix.MADV_DONTNEED)
	}
}
