package cache

import "encoding/binary"

const (
	headerLen   = 12
	fixedRecord = 10 // TYPE, CLASS, TTL and RDLENGTH
)

// skipName returns the offset behind the name at off, or -1 if the name does not
// end within msg. A compression pointer ends a name; its target is not read.
func skipName(msg []byte, off int) int {
	for off < len(msg) {
		switch n := int(msg[off]); {
		case n == 0:
			return off + 1
		case n >= 0xc0:
			if off+2 > len(msg) {
				return -1
			}
			return off + 2
		case n >= 0x40: // no other label type is in use (RFC 6891 §5)
			return -1
		default:
			off += 1 + n
		}
	}
	return -1
}

// questionEnd returns the offset behind the question section, or -1.
func questionEnd(msg []byte) int {
	if len(msg) < headerLen {
		return -1
	}
	off := headerLen
	for range binary.BigEndian.Uint16(msg[4:]) {
		off = skipName(msg, off)
		if off < 0 || off+4 > len(msg) {
			return -1
		}
		off += 4
	}
	return off
}

// appendTTLOffsets appends the offset of the TTL field of each record of msg,
// two octets each, big endian. It reports false if msg is malformed.
func appendTTLOffsets(dst, msg []byte) ([]byte, bool) {
	off := questionEnd(msg)
	if off < 0 {
		return dst, false
	}
	records := 0
	for i := 6; i < headerLen; i += 2 {
		records += int(binary.BigEndian.Uint16(msg[i:]))
	}
	for range records {
		off = skipName(msg, off)
		if off < 0 || off+fixedRecord > len(msg) {
			return dst, false
		}
		dst = binary.BigEndian.AppendUint16(dst, uint16(off+4))
		off = recordEnd(msg, off+4)
		if off > len(msg) {
			return dst, false
		}
	}
	return dst, true
}

// recordEnd returns the offset behind the record whose TTL field is at ttl.
func recordEnd(msg []byte, ttl int) int {
	return ttl + 6 + int(binary.BigEndian.Uint16(msg[ttl+4:]))
}
