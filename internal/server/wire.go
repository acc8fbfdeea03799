package server

import (
	"bytes"
	"encoding/binary"
	"iter"

	"github.com/miekg/dns"
)

// record is the position of a resource record in a message.
type record struct {
	owner int // offset of the owner name
	typ   uint16
	ttl   int // offset of the TTL field
	rdata int // offset of RDATA
	end   int // offset after the record
}

// recordsOf yields the records of all sections of a message in order. It stops
// at a malformed record. It does not allocate.
func recordsOf(msg []byte) iter.Seq[record] {
	return func(yield func(record) bool) {
		if len(msg) < headerLen {
			return
		}
		off := headerLen
		for range binary.BigEndian.Uint16(msg[4:]) {
			if off = skipName(msg, off); off < 0 || off+4 > len(msg) {
				return
			}
			off += 4
		}
		n := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:])) + int(binary.BigEndian.Uint16(msg[10:]))
		for range n {
			r, ok := recordAt(msg, off)
			if !ok || !yield(r) {
				return
			}
			off = r.end
		}
	}
}

// recordAt reads the record at off.
func recordAt(msg []byte, off int) (record, bool) {
	fixed := skipName(msg, off)
	if fixed < 0 || fixed+10 > len(msg) {
		return record{}, false
	}
	r := record{owner: off, typ: binary.BigEndian.Uint16(msg[fixed:]), ttl: fixed + 4, rdata: fixed + 10}
	r.end = r.rdata + int(binary.BigEndian.Uint16(msg[fixed+8:]))
	return r, r.end <= len(msg)
}

// ownerIs reports whether the record's owner is name, in lower-case wire
// format without compression.
func (r record) ownerIs(msg, name []byte) bool {
	owner, _, err := dns.UnpackDomainName(msg, r.owner)
	if err != nil {
		return false
	}
	var buf [maxNameLen + 1]byte
	n, err := dns.PackDomainName(dns.CanonicalName(owner), buf[:], 0, nil, false)
	return err == nil && bytes.Equal(buf[:n], name)
}

// nsecHas reports whether the type bit map of NSEC RDATA has typ (RFC 4034
// §4.1.2). The next domain name is not compressed.
func nsecHas(rdata []byte, typ uint16) bool {
	off := skipName(rdata, 0)
	if off < 0 {
		return false
	}
	for off+2 <= len(rdata) {
		window, n := rdata[off], int(rdata[off+1])
		off += 2
		if off+n > len(rdata) {
			return false
		}
		if window == byte(typ>>8) {
			i := int(typ&0xff) / 8
			return i < n && rdata[off+i]&(0x80>>(typ&7)) != 0
		}
		off += n
	}
	return false
}

// capTTLs lowers the TTLs in msg to at most ttl seconds.
func capTTLs(msg []byte, ttl uint32) {
	for r := range recordsOf(msg) {
		field := msg[r.ttl : r.ttl+4]
		if r.typ != dns.TypeOPT && binary.BigEndian.Uint32(field) > ttl {
			binary.BigEndian.PutUint32(field, ttl)
		}
	}
}
