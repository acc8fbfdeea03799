package cache

import (
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

const flagTC = 0x02 // in the third octet of the header

// Truncate shortens msg, a copy of Msg whose ID, flags, name case and TTLs may
// have been changed, to at most limit octets and returns it. It keeps the
// leading records that fit and corrects the counts. TC is set unless only
// additional records had to go; of those an RRset is kept whole or not at all
// (RFC 2181 §9). Compression pointers point backwards, so what is kept stays
// readable. Header and question are always kept, even if limit is smaller.
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

// count is the number of records in section i: answer, authority, additional.
func (e *Entry) count(i int) int { return int(binary.BigEndian.Uint16(e.buf[6+2*i:])) }

// end is the offset behind record i; behind the question for -1.
func (e *Entry) end(i int) int {
	if i < 0 {
		return questionEnd(e.Msg())
	}
	return recordEnd(e.buf, e.ttlOffset(i))
}

// wholeRRsets lowers kept until the record before the cut and the one behind it
// are of different RRsets, not below first.
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
