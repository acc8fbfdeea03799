package bpf

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// MaxFastPorts is the number of different ports that the program looks at, at most.
const MaxFastPorts = int(fastLimitsFAST_PORTS)

// fastZones is the number of zone counters of the program.
const fastZones = int(fastLimitsFAST_ZONES)

// Answer is an answer that the program may give. The slices are not kept.
type Answer struct {
	// Generation is the result of the Listen during which the answer was right.
	Generation uint32
	Listener   netip.AddrPort
	// Question is the key of the cache: the name in lower case, type, class, flags.
	Question []byte
	// Header has the flags and the counts of the reply in network byte order, from
	// byte 2 of the header to its end. RD is clear, and OPT is not counted.
	Header [10]byte
	// Body is what follows the question. TTLs has the offset of each TTL in the
	// message, two bytes each in network byte order. The TTLs are those of the time
	// when the answer was Age old.
	Body, TTLs []byte
	// KeepTTL: TTLs do not count down.
	KeepTTL bool
	// Age is the time since the TTLs were right, Left the time until the answer
	// expires, Refresh the time until one query goes to the daemon.
	Age, Left, Refresh time.Duration

	Zone   int // index of the counters
	Type   int // index of the type's counter
	Judged int // index of the counter of the normalize directive's result
	List   int // the zone for FastpathConfig's functions, at most 255
	Denial bool
}

// AnswerTable is what the program answers with. The kernel reads it while it is
// written: each cell has a sequence number, and the program passes a query whose
// cell changes. A hash map cannot be used, because the kernel reuses its elements
// while programs read them. The methods make no system call.
type AnswerTable struct {
	seed     uint64
	clock    fastClock
	answered func(list int, name []byte, denied bool, n uint32) // see FastpathConfig

	mu        sync.Mutex
	settings  *fastSettings // this and the tables are shared with the kernel
	buckets   []fastBucket
	small     cells[fastSmallCell]
	large     cells[fastLargeCell]
	listeners []netip.AddrPort
	entries   int
}

// generations is the number of the last generation of all tables of the process. So an
// answer that was right for one table does not get into the next one.
var generations atomic.Uint32

// Listen forgets all answers and starts a new generation, in which the program
// answers for addrs. It ignores addresses with ports beyond the first MaxFastPorts
// different ones. It returns the number of the generation. Once it has returned, no
// query gets an answer of an earlier one.
func (t *AnswerTable) Listen(addrs []netip.AddrPort) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	generation := generations.Add(1)
	atomic.StoreUint32(&t.settings.Generation, generation)
	t.reportSome(t.buckets)
	for i := range t.buckets {
		for w := range t.buckets[i].Ways {
			atomic.StoreUint64(&t.buckets[i].Ways[w], 0)
		}
	}
	t.small.reset()
	t.large.reset()
	t.entries = 0
	t.settings.Ports = [MaxFastPorts]uint16{}
	t.listeners = nil
	ports := 0
	for _, a := range addrs {
		port := networkPort(a.Port())
		if !slices.Contains(t.settings.Ports[:ports], port) {
			if ports == MaxFastPorts {
				continue
			}
			t.settings.Ports[ports] = port
			ports++
		}
		t.listeners = append(t.listeners, a)
	}
	return generation
}

// Put lets the program answer with a. It reports false if the answer does not fit,
// its generation has ended, or the table has no room for it. It allocates nothing: nodens
// puts an answer for each hit of its own.
func (t *AnswerTable) Put(a *Answer) bool {
	var e encoded
	if !e.setQuestion(a.Question) {
		return false
	}
	e.setListener(a.Listener)
	hash := e.hash(t.seed)
	if t.holds(&e, hash, a.Generation) {
		return true
	}
	if !t.encode(&e, a) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.Generation != t.settings.Generation || !slices.Contains(t.listeners, a.Listener) {
		return false
	}
	way, _, same := t.find(&e, hash)
	if same {
		return true
	}
	if way != nil {
		t.remove(way) // equal tags: the program could not tell which cell to read
	}
	number, ok := t.store(&e, hash)
	if !ok {
		return false
	}
	atomic.StoreUint64(t.freeWay(hash), (hash>>32|1)<<32|uint64(number))
	t.entries++
	return true
}

// holds reports whether the program may answer the question of e, whose hash is hash. Most
// Puts find their answer there.
func (t *AnswerTable) holds(e *encoded, hash uint64, generation uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _, same := t.find(e, hash)
	return same && generation == t.settings.Generation
}

// Withdraw removes the answers of a question, a key of the cache, on all addresses.
// Queries that arrive after its return do not get them.
func (t *AnswerTable) Withdraw(question []byte) {
	t.each(question, func(way *uint64, _ uint32) { t.remove(way) })
}

// Hits returns about how many queries the program has answered with the answers of a
// question since the last call.
func (t *AnswerTable) Hits(question []byte) (n uint32) {
	t.each(question, func(_ *uint64, number uint32) {
		hits := atomic.SwapUint32(&t.head(number).Hits, 0)
		t.report(number, hits, 0)
		n += hits
	})
	return n
}

// Entries returns the number of answers.
func (t *AnswerTable) Entries() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entries
}

// each calls f for the cell of the question on each address.
func (t *AnswerTable) each(question []byte, f func(way *uint64, number uint32)) {
	var e encoded
	if !e.setQuestion(question) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.listeners {
		e.setListener(l)
		if way, number, same := t.find(&e, e.hash(t.seed)); same {
			f(way, number)
		}
	}
}

// find returns the way that has the tag of hash, the hash of e, the number of its
// cell, and whether the cell has the key of e.
func (t *AnswerTable) find(e *encoded, hash uint64) (way *uint64, number uint32, same bool) {
	way, number = t.wayOf(hash)
	return way, number, way != nil && t.head(number).Key == e.Head.Key && t.name(number) == e.Name
}

// wayOf returns the way that has the tag of hash, and the number of its cell.
func (t *AnswerTable) wayOf(hash uint64) (*uint64, uint32) {
	b := t.bucket(hash)
	for i := range b.Ways {
		if w := b.Ways[i]; w>>32 == hash>>32|1 {
			return &b.Ways[i], uint32(w)
		}
	}
	return nil, 0
}

func (t *AnswerTable) bucket(hash uint64) *fastBucket {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

// freeWay returns an empty way for hash. If there is none, it evicts the answer with the
// fewest hits.
func (t *AnswerTable) freeWay(hash uint64) *uint64 {
	b := t.bucket(hash)
	victim := &b.Ways[0]
	for i := range b.Ways {
		if b.Ways[i] == 0 {
			return &b.Ways[i]
		}
		if t.head(uint32(b.Ways[i])).Hits < t.head(uint32(*victim)).Hits {
			victim = &b.Ways[i]
		}
	}
	t.remove(victim)
	return victim
}

// remove empties a way and frees its cell.
func (t *AnswerTable) remove(way *uint64) {
	number := uint32(*way)
	atomic.StoreUint64(way, 0)
	h := t.head(number)
	t.report(number, atomic.LoadUint32(&h.Hits), 0)
	atomic.AddUint32(&h.Seq, 1) // also for a program that has read the way
	h.Generation = 0
	atomic.AddUint32(&h.Seq, 1)
	if number&uint32(fastLimitsLARGE_CELL) != 0 {
		t.large.release(number &^ uint32(fastLimitsLARGE_CELL))
	} else {
		t.small.release(number)
	}
	t.entries--
}

// head returns the first part of a cell.
func (t *AnswerTable) head(number uint32) *fastCellHead {
	if n := number &^ uint32(fastLimitsLARGE_CELL); n != number {
		return &t.large.cells[n].Head
	}
	return &t.small.cells[number].Head
}

// name returns the name of a cell, padded with zeros.
func (t *AnswerTable) name(number uint32) (name [largeName]uint64) {
	if n := number &^ uint32(fastLimitsLARGE_CELL); n != number {
		return t.large.cells[n].Name
	}
	copy(name[:], t.small.cells[number].Name[:])
	return name
}

// store writes e to a free cell and returns its number.
func (t *AnswerTable) store(e *encoded, hash uint64) (uint32, bool) {
	if int(e.Head.Key.NameLen) <= int(fastLimitsSMALL_NAME) && e.size <= int(fastLimitsSMALL_DATA) {
		n, ok := t.small.take(t, 0)
		if !ok {
			return 0, false
		}
		c := &t.small.cells[n]
		t.small.hashes[n] = hash
		atomic.AddUint32(&c.Head.Seq, 1)
		e.writeHead(&c.Head)
		copy(c.Name[:], e.Name[:])
		copy(c.Data[:], e.Data[:])
		atomic.AddUint32(&c.Head.Seq, 1)
		return n, true
	}
	n, ok := t.large.take(t, uint32(fastLimitsLARGE_CELL))
	if !ok {
		return 0, false
	}
	c := &t.large.cells[n]
	t.large.hashes[n] = hash
	atomic.AddUint32(&c.Head.Seq, 1)
	e.writeHead(&c.Head)
	c.Name, c.Data = e.Name, e.Data
	atomic.AddUint32(&c.Head.Seq, 1)
	return n | uint32(fastLimitsLARGE_CELL), true
}

// cells are the cells of one size.
type cells[T any] struct {
	cells    []T
	hashes   []uint64 // of the answers in them
	reported []uint32 // hits of each cell that were reported
	free     []uint32
	hand     int // where the next search for an answer to evict starts
}

func (c *cells[T]) init() {
	c.hashes, c.reported, c.free = make([]uint64, len(c.cells)), make([]uint32, len(c.cells)), make([]uint32, 0, len(c.cells))
	c.reset()
}

// reset frees all cells.
func (c *cells[T]) reset() {
	c.free = c.free[:0]
	clear(c.reported)
	for i := range c.cells {
		c.free = append(c.free, uint32(len(c.cells)-1-i))
	}
}

func (c *cells[T]) release(n uint32) { c.free = append(c.free, n) }

// take returns a free cell. If there is none, it evicts an answer without hits among the
// next few, and halves the hits of the others. So answers with hits stay, and a flood of
// unused names costs little.
func (c *cells[T]) take(t *AnswerTable, flag uint32) (uint32, bool) {
	const tries = 8
	for try := 0; len(c.free) == 0; try++ {
		if try == tries {
			return 0, false
		}
		c.hand = (c.hand + 1) % len(c.cells)
		number := uint32(c.hand) | flag
		if h := t.head(number); atomic.LoadUint32(&h.Hits) > 0 {
			hits := atomic.LoadUint32(&h.Hits)
			atomic.StoreUint32(&h.Hits, hits/2)
			t.report(number, hits, hits/2)
			continue
		}
		if way, have := t.wayOf(c.hashes[c.hand]); way != nil && have == number {
			t.remove(way)
		}
	}
	last := len(c.free) - 1
	n := c.free[last]
	c.free = c.free[:last]
	return n, true
}

const largeName = int(fastLimitsLARGE_NAME) / 8

// encoded is an answer in the form of a large cell.
type encoded struct {
	fastLargeCell
	size int // bytes of data in use
}

// encode adds all but the key of a to e. It reports false if a does not fit into a cell.
func (t *AnswerTable) encode(e *encoded, a *Answer) bool {
	if !e.setBody(a) || a.Zone >= fastZones || a.Type >= int(fastLimitsFAST_TYPES) ||
		a.Judged >= int(fastLimitsFAST_JUDGED) {
		return false
	}
	now := t.clock.now()
	h := &e.Head
	h.Generation = a.Generation
	h.Expires, h.RefreshAt = uint64(now+int64(a.Left)), uint64(now+int64(a.Refresh))
	if !a.KeepTTL {
		h.Born = uint64(max(now-int64(a.Age), 1))
	}
	h.Zone, h.Type, h.Judged, h.List = uint32(a.Zone), uint8(a.Type), uint8(a.Judged), uint8(min(a.List, math.MaxUint8))
	if a.Denial {
		h.Denial = 1
	}
	h.Rcode = a.Header[1] & 0xf
	h.Flags = binary.NativeEndian.Uint16(a.Header[:])
	for i := range h.Counts {
		h.Counts[i] = binary.NativeEndian.Uint16(a.Header[4+2*i:])
	}
	return true
}

// keyTail is the length of type, class and flags in a key of the cache.
const keyTail = 5

func (e *encoded) setQuestion(q []byte) bool {
	n := len(q) - keyTail
	if n < 1 || n > int(fastLimitsLARGE_NAME) {
		return false
	}
	copy(bytesOf(&e.Name), q[:n])
	k := &e.Head.Key
	k.NameLen, k.Flags = uint8(n), q[n+4]
	k.TypeClass = binary.NativeEndian.Uint32(q[n:])
	return true
}

func (e *encoded) setListener(l netip.AddrPort) {
	e.Head.Key.Addr, e.Head.Key.Port = words(l.Addr()), networkPort(l.Port())
}

// setBody stores the body, its sum, and the offsets of TTLs in it.
func (e *encoded) setBody(a *Answer) bool {
	n, records := len(a.Body), len(a.TTLs)/2
	table := (n + 1) &^ 1
	e.size = table + 2*records
	if records > int(fastLimitsFAST_RECORDS) || e.size > int(fastLimitsLARGE_DATA) {
		return false
	}
	data := bytesOf(&e.Data)
	copy(data, a.Body)
	body := headerLen + len(a.Question) - 1 // its offset in the message
	for i := range records {
		off := int(binary.BigEndian.Uint16(a.TTLs[2*i:])) - body
		if off < 0 || off+4 > n {
			return false
		}
		binary.NativeEndian.PutUint16(data[table+2*i:], uint16(off))
	}
	e.Head.BodyLen, e.Head.Records = uint16(n), uint8(records)
	e.Head.BodySum = onesSum(data[:table])
	return true
}

const headerLen = 12

// onesSum is the 16-bit ones' complement sum (RFC 1071) of an even number of bytes,
// in host order.
func onesSum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// hash is the program's hash of the key.
func (e *encoded) hash(seed uint64) uint64 {
	h, k := seed, &e.Head.Key
	for i := range (int(k.NameLen) + 7) / 8 {
		h = mix(h, e.Name[i])
	}
	h = mix(mix(h, pair(k.Addr[0], k.Addr[1])), pair(k.Addr[2], k.Addr[3]))
	return mix(h, *(*uint64)(unsafe.Pointer(&k.TypeClass)))
}

// writeHead copies the head except for the sequence number.
func (e *encoded) writeHead(to *fastCellHead) {
	seq := to.Seq
	e.Head.Seq = seq
	*to = e.Head
}

// bytesOf is the memory of an array of words.
func bytesOf[T any](array *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(array)), unsafe.Sizeof(*array))
}
