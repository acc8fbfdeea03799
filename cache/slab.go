package cache

import (
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockBytes is the size of a block: a cache line, so that a look-up loads
// whole ones.
const blockBytes = 64

// slab hands out blocks of memory that the collector does not know of: an entry
// costs it nothing, and memory that is given back is the host's at once. A
// block is named by its number; 0 is none. The memory is mapped as a whole and
// becomes real as blocks are used for the first time.
type slab struct {
	mem  []byte
	free uint32 // head of the list of blocks that were given back
	top  uint32 // blocks from here on were never used
	used uint32 // blocks in use
	huge int    // mem up to here is in huge pages, or will be
}

// A cache of many names is a random walk through memory, whose cost is that of
// translating addresses: with pages of 4 KiB a look-up among a million names
// takes three times as long as with huge ones. A small cache must not pay for
// them in memory. So a slab changes over when it has grown.
const (
	hugePage = 2 << 20
	hugeFrom = 2 * hugePage / blockBytes // top
)

// block is what follows the first block of an entry.
type block struct {
	more uint32 // the next one
	data [blockBytes - 4]byte
}

// slot is the first block of an entry. It holds the header of the message, so
// that the question begins with the second block.
type slot struct {
	born int64 // nanoseconds since the start of the Store
	used int64 // the last look-up that counted for prefetching, likewise

	more       uint32 // the second block
	prev, next uint32 // in its queue, towards the older and the newer end
	seq        uint32 // when it joined the queue, see shard.seq
	ttl        uint32 // seconds
	hash       uint32 // what the index has

	msgLen  uint16
	records uint16
	rcode   uint16
	hits    uint16 // look-ups without a long gap
	set     uint16 // index into shard.sets

	key   byte // flags of the key
	state byte // see the bits below
	head  [headerLen]byte
}

// Bits of slot.state.
const (
	stateFreq       = 3      // how often it was asked for since it was last judged
	stateKind       = 3 << 2 // Kind
	stateMain       = 1 << 4 // it is in the main queue
	stateRefreshing = 1 << 5 // somebody has claimed its refresh
	kindShift       = 2
)

// Both are a block; elsewhere this does not compile.
const (
	_ = -(unsafe.Sizeof(slot{}) ^ blockBytes)
	_ = -(unsafe.Sizeof(block{}) ^ blockBytes)
)

// newSlab maps room for bytes octets, which belong to owner and go with it.
func newSlab[T any](bytes int64, owner *T) slab {
	// Numbers are 32 bits, and the last one is kept free.
	bytes = min(max(bytes, 2*blockBytes), (math.MaxUint32-1)*blockBytes)
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		// The host refuses the reservation (RLIMIT_AS, strict overcommit).
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

// blocksFor is the number of blocks that an entry of n octets takes.
func blocksFor(n int) uint32 {
	const data = blockBytes - 4
	return 1 + uint32(max(n-headerLen, 1)+data-1)/data
}

// take returns a block with undefined content. The caller has made sure that
// there is one.
func (s *slab) take() uint32 {
	s.used++
	if id := s.free; id != 0 {
		s.free = s.block(id).more
		return id
	}
	if s.top++; s.top == hugeFrom {
		s.useHugePages()
	}
	return s.top - 1
}

// useHugePages asks for huge pages, but for the last eighth: what the index
// takes of the share is not to be had there, and no page may reach into it.
func (s *slab) useHugePages() {
	end := len(s.mem) / 8 * 7 / hugePage * hugePage
	if end > 0 && unix.Madvise(s.mem[:end], unix.MADV_HUGEPAGE) == nil {
		s.huge = end
	}
}

func (s *slab) give(id uint32) {
	s.block(id).more = s.free
	s.free = id
	s.used--
}

// rises is by how many blocks top rises when n are taken.
func (s *slab) rises(n uint32) uint32 {
	free := s.top - 1 - s.used
	return n - min(n, free)
}

// bytes is how much of the mapping has been used.
func (s *slab) bytes() int64 { return int64(s.top-1) * blockBytes }

// real is how much of the mapping has become real.
func (s *slab) real() int64 {
	n := s.bytes()
	if n < int64(s.huge) {
		n = (n + hugePage - 1) / hugePage * hugePage
	}
	return n
}

// write puts buf into an entry whose first block is id; as many blocks as it
// takes hang there.
func (s *slab) write(id uint32, buf []byte) {
	sl := s.slot(id)
	n := copy(sl.head[:], buf)
	for next := sl.more; n < len(buf); {
		b := s.block(next)
		n += copy(b.data[:], buf[n:])
		next = b.more
	}
}

// read appends the n octets of an entry to dst.
func (s *slab) read(dst []byte, id uint32, n int) []byte {
	sl := s.slot(id)
	k := min(n, headerLen)
	dst = append(dst, sl.head[:k]...)
	for next := sl.more; k < n; {
		b := s.block(next)
		part := min(n-k, len(b.data))
		dst = append(dst, b.data[:part]...)
		k += part
		next = b.more
	}
	return dst
}

// question reports whether the octets behind the header begin with q.
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

// chain takes n blocks that hang together and returns the first.
func (s *slab) chain(n uint32) uint32 {
	first := s.take()
	s.slot(first).more = 0
	if n == 1 {
		return first
	}
	last := s.take()
	s.slot(first).more = last
	for range n - 2 {
		id := s.take()
		s.block(last).more = id
		last = id
	}
	s.block(last).more = 0
	return first
}

// release gives back all blocks of an entry and returns how many those were.
func (s *slab) release(id uint32) uint32 {
	n, next := uint32(1), s.slot(id).more
	s.give(id)
	for next != 0 {
		id, next = next, s.block(next).more
		s.give(id)
		n++
	}
	return n
}

// forget gives the memory behind block top back to the host. No block from
// there on is in use or free. Where memory is scarce there are no huge pages,
// which come whole.
func (s *slab) forget(top uint32) {
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
