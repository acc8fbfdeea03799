package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Entry is a packed answer, a copy of the cached one. Its methods are safe for
// concurrent use until the Entry is passed to Cache.GetInto again.
type Entry struct {
	buf    []byte // the message, then the offset of each TTL, see appendTTLOffsets
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
	r, err := sections(m)
	if err != nil {
		return nil, err
	}
	return pack(m, r, r.ttls())
}

// Msg returns the packed message: a header with ID 0 and the flags of upstream,
// the question, and the records without OPT. The caller must not modify it.
func (e *Entry) Msg() []byte { return e.buf[:e.msgLen:e.msgLen] }

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

// pack builds an entry from m. Its records are r, their TTLs are ttls.
func pack(m *dns.Msg, r *records, ttls []uint32) (*Entry, error) {
	if m.Rcode < 0 || m.Rcode > 0xfff {
		return nil, fmt.Errorf("pack answer: rcode %d out of range", m.Rcode)
	}
	c := *m // in the form that is cached
	c.Id = 0
	c.Rcode &= 0xf // the upper bits live in OPT
	c.Compress = true
	c.Extra = r.additional
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
	buf := slices.Grow([]byte(nil), len(wire)+2*len(r.all))
	buf, ok := appendTTLOffsets(append(buf, wire...), wire)
	if !ok {
		return nil, errors.New("pack answer: malformed records")
	}
	e := &Entry{buf: buf, msgLen: uint16(len(wire)), rcode: uint16(m.Rcode)}
	for i, ttl := range ttls {
		binary.BigEndian.PutUint32(e.buf[e.ttlOffset(i):], ttl)
	}
	return e, nil
}
