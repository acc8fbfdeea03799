package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Entry is a packed answer, a copy of the cached one. Its methods are safe for
// concurrent use until the Entry is passed to Cache.GetInto again.
type Entry struct {
	buf    []byte // the message, then the offset of each TTL, see appendOffsets
	ttl    uint32 // seconds that it is fresh
	msgLen uint16
	rcode  uint16
	kind   Kind
	flags  byte // flags of the key
}

// Kind is the class of an entry; each has its own cap and counters.
type Kind uint8

// The kinds of entries. A denial is NXDOMAIN or NODATA (RFC 2308).
const (
	Success Kind = iota
	Denial
	Failure
	kinds
)

// String returns the kind as metrics label it.
func (k Kind) String() string {
	switch k {
	case Success:
		return "success"
	case Denial:
		return "denial"
	case Failure:
		return "failure"
	default:
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
}

// StaleAge stands for the age of an answer that is served after its expiry.
const StaleAge = ^uint32(0)

// staleTTL is the TTL of stale records in seconds (RFC 8767 §4).
const staleTTL = 30

var errSize = errors.New("message exceeds 65535 bytes")

// NewEntry packs m as an entry that is not cached. So the same code writes hits and
// misses. It omits OPT, TSIG and SIG(0), which belong to one hop, sets the ID to 0,
// and normalises TTLs by RFC 2181 §5.2 and §8. It fails if m has no wire format. It
// does not modify m.
func NewEntry(m *dns.Msg) (*Entry, error) {
	a, err := newAnswer(m)
	if err != nil {
		return nil, err
	}
	return a.pack()
}

// Msg returns the packed message: a header with ID 0 and the flags of upstream,
// the question, and the records without OPT. The caller must not modify it.
func (e *Entry) Msg() []byte { return e.buf[:e.msgLen:e.msgLen] }

// TTLOffsets returns the offset of the TTL of each record in Msg, two bytes each,
// big endian. The caller must not modify it.
func (e *Entry) TTLOffsets() []byte { return e.buf[e.msgLen:] }

// Rcode returns the response code with its extended bits (RFC 6891 §6.1.3); the
// header holds only the lower four.
func (e *Entry) Rcode() int { return int(e.rcode) }

// Kind returns the kind of the entry. It is meaningless if TTL is 0.
func (e *Entry) Kind() Kind { return e.kind }

// TTL returns for how long the entry is fresh from the time of its Put, or 0 if
// it is not cached.
func (e *Entry) TTL() time.Duration { return time.Duration(e.ttl) * time.Second }

// AgeTTLs lowers the TTLs in msg, a copy of Msg, by age seconds, but not below
// 0. StaleAge sets all of them to 30 s (RFC 8767 §4). Pass Hit.Age for a hit, and
// 0 for the entry that Put returned.
func (e *Entry) AgeTTLs(msg []byte, age uint32) {
	if age == 0 {
		return
	}
	for i := range e.records() {
		off := e.ttlOffset(i)
		if off+4 > len(msg) {
			return
		}
		field := msg[off : off+4]
		ttl := binary.BigEndian.Uint32(field)
		if age == StaleAge {
			ttl = staleTTL
		} else {
			ttl -= min(ttl, age)
		}
		binary.BigEndian.PutUint32(field, ttl)
	}
}

// records returns the number of records in all sections.
func (e *Entry) records() int { return (len(e.buf) - int(e.msgLen)) / 2 }

func (e *Entry) ttlOffset(i int) int {
	return int(binary.BigEndian.Uint16(e.buf[int(e.msgLen)+2*i:]))
}

// pack builds an entry from a.
func (a *answer) pack() (*Entry, error) {
	m := a.msg
	if m.Rcode < 0 || m.Rcode > 0xfff {
		return nil, fmt.Errorf("pack answer: rcode %d out of range", m.Rcode)
	}
	c := *m // in the form that is cached
	c.Id = 0
	c.Rcode &= 0xf // the upper bits live in OPT
	c.Compress = true
	c.Extra = a.records[len(m.Answer)+len(m.Ns):]
	c.Question = slices.Clone(m.Question)
	for i := range c.Question {
		// Compression compares bytes, and answers carry lower case.
		c.Question[i].Name = strings.ToLower(c.Question[i].Name)
	}
	wire, err := c.Pack()
	if err != nil {
		return nil, fmt.Errorf("pack answer: %w", err)
	}
	if len(wire) > dns.MaxMsgSize-1 {
		return nil, fmt.Errorf("pack answer: %w", errSize)
	}
	// miekg/dns parses a record with truncated RDATA (RFC 9267 §5) as one with empty
	// names, and packs an empty name to no bytes.
	if err := new(dns.Msg).Unpack(wire); err != nil {
		return nil, fmt.Errorf("pack answer: malformed records: %w", err)
	}
	buf, ok := appendOffsets(append(make([]byte, 0, len(wire)+2*len(a.records)), wire...), a.ttls)
	if !ok {
		return nil, errors.New("pack answer: malformed records")
	}
	return &Entry{buf: buf, msgLen: uint16(len(wire)), rcode: uint16(m.Rcode)}, nil
}

const (
	keyDO = 1 << iota
	keyCD
	keyAD
)

// keyTail is the length of QTYPE, QCLASS and the flag byte, which follow the
// name in a key. A key without its last byte is a question section.
const keyTail = 5

const maxNameWire = 255 // RFC 1035 §2.3.4

// AppendKey appends the key of a question to dst: the name, QTYPE and QCLASS in
// network byte order, and one byte of flags. The name must be in uncompressed
// wire format with its root label, and in lower case. DO, CD and AD are part of
// the key, so that a client that requests validation never gets an answer to a
// query that did not.
func AppendKey(dst []byte, name []byte, qtype, qclass uint16, do, cd, ad bool) []byte {
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint16(dst, qtype)
	dst = binary.BigEndian.AppendUint16(dst, qclass)
	var flags byte
	if do {
		flags |= keyDO
	}
	if cd {
		flags |= keyCD
	}
	if ad {
		flags |= keyAD
	}
	return append(dst, flags)
}

// validKey reports whether key has the form that AppendKey produces.
func validKey(key []byte) bool {
	if len(key) < 1+keyTail || len(key) > maxNameWire+keyTail {
		return false
	}
	return skipName(key[:len(key)-keyTail], 0) == len(key)-keyTail
}

// setKey makes key the key of e, which must not be shared yet. The question section
// of an entry serves as its key, except for the flag byte. setKey reports false if e
// answers another question.
func (e *Entry) setKey(key []byte) bool {
	q := len(key) - 1
	if q < keyTail || binary.BigEndian.Uint16(e.buf[4:]) != 1 || skipName(e.Msg(), headerLen)+4 != headerLen+q {
		return false
	}
	e.flags = key[q]
	return bytes.Equal(e.buf[headerLen:headerLen+q], key[:q])
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

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

// appendOffsets appends the offset of the TTL field of each record to msg, two octets
// each, big endian. It sets the records' TTLs to ttls, unless ttls is nil. It reports
// false if msg is malformed.
func appendOffsets(msg []byte, ttls []uint32) ([]byte, bool) {
	size, off := len(msg), headerLen
	if size < headerLen {
		return msg, false
	}
	questions, records := int(binary.BigEndian.Uint16(msg[4:])), 0
	for i := 6; i < headerLen; i += 2 {
		records += int(binary.BigEndian.Uint16(msg[i:]))
	}
	for i := -questions; i < records; i++ {
		off = skipName(msg[:size], off)
		if i < 0 && off >= 0 && off+4 <= size {
			off += 4
			continue
		}
		if off < 0 || off+fixedRecord > size {
			return msg, false
		}
		if i < len(ttls) {
			binary.BigEndian.PutUint32(msg[off+4:], ttls[i])
		}
		msg = binary.BigEndian.AppendUint16(msg, uint16(off+4))
		if off += fixedRecord + int(binary.BigEndian.Uint16(msg[off+8:])); off > size {
			return msg, false
		}
	}
	return msg, true
}

// recordEnd returns the offset behind the record whose TTL field is at ttl.
func recordEnd(msg []byte, ttl int) int {
	return ttl + 6 + int(binary.BigEndian.Uint16(msg[ttl+4:]))
}

// answer is a message as the cache reads it.
type answer struct {
	msg      *dns.Msg
	records  []dns.RR // of all sections, in wire order, without those that are hop-by-hop
	ttls     []uint32 // of records
	soa      *dns.SOA // of the authority section; nil: there is none
	referral bool     // the authority section has NS records
}

// newAnswer reads m. A TTL with the top bit set counts as 0 (RFC 2181 §8). All
// records of an RRset get its smallest TTL (RFC 2181 §5.2).
func newAnswer(m *dns.Msg) (*answer, error) {
	if m == nil {
		return nil, errors.New("pack answer: no message")
	}
	n := len(m.Answer) + len(m.Ns) + len(m.Extra)
	a := &answer{msg: m, records: make([]dns.RR, 0, n), ttls: make([]uint32, 0, n)}
	for i, section := range [...][]dns.RR{m.Answer, m.Ns, m.Extra} {
		first := len(a.records)
		for _, rr := range section {
			if rr == nil {
				return nil, errors.New("pack answer: nil record")
			}
			if i == 2 && hopByHop(rr) {
				continue
			}
			a.records = append(a.records, rr)
			a.ttls = append(a.ttls, normalTTL(rr.Header().Ttl))
		}
		if len(section) > 1 {
			equalise(a.records[first:], a.ttls[first:])
		}
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok && a.soa == nil {
			a.soa = soa
		}
		a.referral = a.referral || rr.Header().Rrtype == dns.TypeNS
	}
	return a, nil
}

// hopByHop reports whether rr is about one message between two hosts: OPT (RFC
// 6891 §6.1.1), TSIG (RFC 8945 §5.1), SIG(0) (RFC 2931 §3).
func hopByHop(rr dns.RR) bool {
	switch rr := rr.(type) {
	case *dns.OPT, *dns.TSIG:
		return true
	case *dns.SIG:
		return rr.TypeCovered == 0
	default:
		return false
	}
}

func normalTTL(ttl uint32) uint32 {
	if ttl > math.MaxInt32 {
		return 0
	}
	return ttl
}

// rrset identifies an RRset within a section. Signatures of different types
// have their own TTLs (RFC 4034 §3).
type rrset struct {
	name    string
	rrtype  uint16
	class   uint16
	covered uint16
}

func rrsetOf(rr dns.RR) rrset {
	h := rr.Header()
	s := rrset{name: strings.ToLower(h.Name), rrtype: h.Rrtype, class: h.Class}
	if sig, ok := rr.(*dns.RRSIG); ok {
		s.covered = sig.TypeCovered
	}
	return s
}

// equalise lowers the TTLs of each RRset to the smallest in it.
func equalise(rrs []dns.RR, ttls []uint32) {
	smallest := make(map[rrset]uint32, len(rrs))
	for i, rr := range rrs {
		s := rrsetOf(rr)
		if ttl, ok := smallest[s]; !ok || ttls[i] < ttl {
			smallest[s] = ttls[i]
		}
	}
	for i, rr := range rrs {
		ttls[i] = smallest[rrsetOf(rr)]
	}
}
