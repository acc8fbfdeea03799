package cache

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"
)

// A cut is a stored NXDOMAIN that also denies all names below its own (RFC 8020). The
// caller decides which answers are cuts and marks them. Storing another answer for the
// key removes the mark.

// cutRefresh is the least remaining life at which a cut in use is refreshed.
const cutRefresh = 250 * time.Millisecond

// MarkCut makes e, which Put has just stored for key, a cut. It reports false if e is
// no NXDOMAIN whose only record is an SOA, or is not stored any more.
func (c *Cache) MarkCut(key []byte, e *Entry) bool {
	if e.kind != Denial || e.rcode != dns.RcodeNameError || e.records() != 1 || !e.hasOnlySOA() {
		return false
	}
	hash, set := c.locate(key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	id := set.find(Success, hash, key)
	if id == 0 {
		return false
	}
	sl := set.shard.slab.slot(id)
	if sl.kind() != Denial || sl.rcode != e.rcode || sl.msgLen != e.msgLen || sl.records != 1 {
		return false
	}
	sl.state |= stateCut
	return true
}

// UnmarkCut removes the mark of key's answer and reports whether it had one.
func (c *Cache) UnmarkCut(key []byte) bool {
	hash, set := c.locate(key)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	id := set.find(Success, hash, key)
	if id == 0 {
		return false
	}
	sl := set.shard.slab.slot(id)
	marked := sl.state&stateCut != 0
	sl.state &^= stateCut
	return marked
}

// GetBelow looks up the cut at key cut, and makes e the answer to key, whose name is
// below the cut. If e is nil, it allocates a new Entry. There is no hit without a cut,
// and none for a key with DO or CD: the cut has no proof. Verify is set on a Stale hit
// until a query for the cut's name has failed, and Refresh on a Fresh hit that is about
// to expire.
func (c *Cache) GetBelow(cut, key []byte, now time.Time, e *Entry) Hit {
	if key[len(key)-1]&^keyAD != 0 {
		return Hit{}
	}
	t := now.Sub(c.store.start)
	hash, set := c.locate(cut)
	set.shard.mu.Lock()
	defer set.shard.mu.Unlock()
	id := set.find(Success, hash, cut)
	if id == 0 {
		return Hit{}
	}
	sl := set.shard.slab.slot(id)
	if sl.state&stateCut == 0 || t >= sl.expiry()+c.policy.staleFor || !c.policy.keeps(Denial, cut) {
		return Hit{}
	}
	if e == nil {
		e = new(Entry)
	}
	set.shard.slab.read(id, e)
	if !e.moveBelow(len(cut)-keyTail, key[:len(key)-1]) {
		return Hit{}
	}
	h := Hit{State: Stale, Age: StaleAge}
	if left := sl.expiry() - t; left > 0 {
		h = c.fresh(sl, t)
		h.Refresh = left <= max(time.Duration(sl.ttl)*time.Second/20, cutRefresh) && c.liveFailure(set, hash, cut, t) == 0 && sl.claimRefresh()
	} else {
		h.Verify = c.liveFailure(set, hash, cut, t) == 0
	}
	h.Entry = e
	return h
}

// hasOnlySOA reports whether the only record of e, which has one, is an SOA in the
// authority section whose names moveBelow can read.
func (e *Entry) hasOnlySOA() bool {
	msg := e.Msg()
	if binary.BigEndian.Uint16(msg[8:]) != 1 || binary.BigEndian.Uint16(msg[e.ttlOffset(0)-4:]) != dns.TypeSOA {
		return false
	}
	return movePointers(append([]byte(nil), msg...), questionEnd(msg), 0)
}

// noBytes are zeros that make room in an entry.
var noBytes [maxNameWire]byte

// moveBelow makes e, the denial of a name of n bytes, a denial of question. Its name
// is longer and ends in the old one, so all compression pointers and offsets move by
// the difference. moveBelow reports false if e is malformed.
func (e *Entry) moveBelow(n int, question []byte) bool {
	end := headerLen + n + 4
	by := headerLen + len(question) - end
	if by <= 0 || by > len(noBytes) || len(e.buf) < end || int(e.msgLen)+by > dns.MaxMsgSize-1 {
		return false
	}
	e.buf = append(e.buf, noBytes[:by]...)
	copy(e.buf[end+by:], e.buf[end:len(e.buf)-by])
	copy(e.buf[headerLen:], question)
	e.msgLen += uint16(by)
	for i := range e.records() {
		off := e.buf[int(e.msgLen)+2*i:]
		binary.BigEndian.PutUint16(off, binary.BigEndian.Uint16(off)+uint16(by))
	}
	return movePointers(e.Msg(), end+by, by)
}

// movePointers adds by to the compression pointers of the SOA record at off: in its
// owner, MNAME and RNAME. It reports false if the record is malformed.
func movePointers(msg []byte, off, by int) bool {
	for i := range 3 {
		for off < len(msg) && msg[off] != 0 && msg[off] < 0x40 {
			off += 1 + int(msg[off])
		}
		if off+2 > len(msg) {
			return false
		}
		if msg[off] == 0 {
			off++
		} else {
			to := int(binary.BigEndian.Uint16(msg[off:])) + by
			if to < 0xc000+headerLen || to > 0xffff {
				return false
			}
			binary.BigEndian.PutUint16(msg[off:], uint16(to))
			off += 2
		}
		if i == 0 {
			off += fixedRecord
		}
	}
	return off+20 == len(msg)
}
