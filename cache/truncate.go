package cache

import (
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

const flagTC = 0x02 // in the third byte of the header

// Truncate shortens msg to at most limit bytes and returns it. msg is a copy of Msg,
// possibly with another ID, flags, name case and TTLs. Truncate keeps the leading
// records that fit and corrects the counts. It sets TC unless it removed only
// additional records; of these it removes whole RRsets (RFC 2181 §9). Compression
// pointers point backwards, so the rest stays readable. Header and question stay
// even if they exceed limit.
func (e *Entry) Truncate(msg []byte, limit int) []byte {
	if len(msg) <= limit || len(msg) < int(e.msgLen) {
		return msg
	}
	kept, required := 0, e.count(0)+e.count(1)
	for kept < e.records() && e.end(kept) <= limit {
		kept++
	}
	if kept < required {
		msg[2] |= flagTC
	} else {
		kept = e.wholeRRsets(kept, required)
	}
	for i, left := 0, kept; i < 3; i++ {
		n := min(e.count(i), left)
		binary.BigEndian.PutUint16(msg[6+2*i:], uint16(n))
		left -= n
	}
	return msg[:e.end(kept-1)]
}

// count returns the number of records in section i: answer, authority, additional.
func (e *Entry) count(i int) int { return int(binary.BigEndian.Uint16(e.buf[6+2*i:])) }

// end returns the offset behind record i, or behind the question if i is -1.
func (e *Entry) end(i int) int {
	if i < 0 {
		return questionEnd(e.Msg())
	}
	return recordEnd(e.buf, e.ttlOffset(i))
}

// wholeRRsets lowers kept, but not below first, until the records before and
// behind the cut belong to different RRsets.
func (e *Entry) wholeRRsets(kept, first int) int {
	for kept > first && kept < e.records() && e.sameRRset(kept-1, kept) {
		kept--
	}
	return kept
}

func (e *Entry) sameRRset(i, j int) bool {
	a, b := e.ttlOffset(i), e.ttlOffset(j)
	if string(e.buf[a-4:a]) != string(e.buf[b-4:b]) { // TYPE and CLASS
		return false
	}
	return strings.EqualFold(e.owner(i), e.owner(j))
}

func (e *Entry) owner(i int) string {
	name, _, err := dns.UnpackDomainName(e.Msg(), e.end(i-1))
	if err != nil {
		return ""
	}
	return name
}
