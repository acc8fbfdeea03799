package server

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/querystats"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

const (
	headerLen  = 12
	maxNameLen = 255 // bytes, RFC 1035 §2.3.4
	minUDPSize = 512
	maxUDPSize = 1232 // RFC 9715 §3: crosses any path without fragmentation
)

// Header bits of bytes 2 and 3, RFC 1035 §4.1.1 and RFC 4035 §3.1.6.
const (
	flagQR     = 1 << 15
	opcodeMask = 0xf << 11
	flagAA     = 1 << 10
	flagTC     = 1 << 9
	flagRD     = 1 << 8
	flagRA     = 1 << 7
	flagAD     = 1 << 5
	flagCD     = 1 << 4
	rcodeMask  = 0xf
)

// Query is one query of a client. After parse, name and options point into the
// parsed buffer. In a copy made by copyTo they do not.
type Query struct {
	id     uint16
	flags  uint16
	qtype  uint16
	qclass uint16
	name   []byte // wire format, spelled as by the client
	lower  []byte // name in lower case; the key may share its memory

	udpSize uint16 // of the OPT record
	opt     bool   // the client sent an OPT record (RFC 6891)
	do      bool   // DNSSEC OK
	cd      bool   // checking disabled
	ad      bool   // AD is set and DO is not: the client wants AD (RFC 6840 §5.7)
	tcp     bool
	inner   bool        // query of an action: the reply may have any size
	private bool        // extra depends on the client: the answer must not be stored
	bypass  bool        // see exchange.bypass
	plain   bool        // the reply is a fresh entry as it is, set by fromCache
	judged  normalised  // result of the normalize directive for a plain reply, set by fromCache
	found   cache.State // result of fromCache's lookup
	nsid    bool        // the reply has the zone's NSID, RFC 5001; set by its actions
	size    uint16      // bytes of the whole query

	options []byte // of the OPT record
	wire    []byte // the whole query; nil in a copy
	client  netip.AddrPort
	start   time.Time

	extra []dns.EDNS0 // options for upstream, set by the zone's actions
	zone  *boundZone  // set by tryHit
	key   []byte      // of the cache, set by tryHit

	memory *lookupMemory // nil: parse and lookups allocate
	buf    []byte        // memory of a copy, see copyTo
}

// lookupMemory is a reader's memory for the key and cache entries, so that a hit
// does not allocate. It serves one query at a time.
type lookupMemory struct {
	answer, other cache.Entry
	key           [maxKeyLen]byte

	batch   bool    // tallies and samples are counted per batch
	tallies []tally // not yet counted
	sampler querystats.Sampler
	samples []querystats.Sample // not yet counted
}

// A cache key is the name, type, class and flags.
const (
	keyTail   = 5
	maxKeyLen = maxNameLen + keyTail
)

// makeKey sets q.key. It reuses the memory of q.lower, which is a part of the
// key.
func (q *Query) makeKey() {
	q.key = cache.AppendKey(q.lower[:0], q.lower, q.qtype, q.qclass, q.do, q.cd, q.ad)
}

// verdict is how to handle a parsed message.
type verdict int

const (
	accept     verdict = iota
	discard            // no query: no reply
	formErr            // RFC 1035 §4.1.1
	notImp             // unknown opcode, RFC 8906 §3.1.4
	badVers            // EDNS version above 0, RFC 6891 §6.1.3
	refuse             // a class or a transfer that is not served
	identify           // id.server, see Config.Identity
	nxnameType         // QTYPE 128 is not allowed, RFC 9824 §3.4
)

// parse reads msg into q. It does not allocate. Unless the verdict is discard, parse
// sets id and flags, and the parts of the question and the OPT record that it could
// read.
func (q *Query) parse(msg []byte) verdict {
	q.name, q.lower, q.key, q.opt, q.do, q.ad, q.udpSize, q.options, q.zone, q.found, q.plain, q.judged = nil, nil, nil, false, false, false, 0, nil, nil, cache.Miss, false, notJudged
	q.wire, q.size = msg, uint16(len(msg))
	if len(msg) < headerLen {
		return discard
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	q.cd = q.flags&flagCD != 0
	if q.flags&flagQR != 0 {
		return discard
	}
	if q.flags&opcodeMask != 0 {
		return notImp
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		return formErr
	}
	off, ok := q.parseQuestion(msg)
	if !ok {
		return formErr
	}
	if v := q.parseRecords(msg, off); v != accept {
		return v
	}
	q.ad = q.flags&flagAD != 0 && !q.do
	return q.judge()
}

// parseQuestion reads the only question and returns the offset after it. A
// compression pointer is invalid there, since there is no earlier name.
func (q *Query) parseQuestion(msg []byte) (int, bool) {
	off := headerLen
	for {
		if off >= len(msg) {
			return 0, false
		}
		n := int(msg[off])
		if n > 63 || off+1+n-headerLen > maxNameLen {
			return 0, false
		}
		off += 1 + n
		if n == 0 {
			break
		}
	}
	if off+4 > len(msg) {
		return 0, false
	}
	q.name = msg[headerLen:off]
	var key []byte
	if q.memory != nil {
		key = q.memory.key[:0]
	}
	q.lower = appendLower(key, q.name)
	q.qtype = binary.BigEndian.Uint16(msg[off:])
	q.qclass = binary.BigEndian.Uint16(msg[off+2:])
	return off + 4, true
}

// appendLower appends name with its ASCII letters in lower case (RFC 4343
// §2). Length bytes are below 64, and so no letters.
func appendLower(dst, name []byte) []byte {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; len(name) >= 8; name = name[8:] { // eight letters at once
		x := binary.LittleEndian.Uint64(name)
		low := x &^ tops
		fromA, beyondZ := low+(0x80-'A')*ones, low+(0x7f-'Z')*ones // top bits: >= 'A', > 'Z'
		upper := (fromA &^ beyondZ) &^ x & tops
		dst = binary.LittleEndian.AppendUint64(dst, x|upper>>2)
	}
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// parseRecords reads the OPT record among the records behind the question.
func (q *Query) parseRecords(msg []byte, off int) verdict {
	before := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	total := before + int(binary.BigEndian.Uint16(msg[10:]))
	var version uint8
	for i := range total {
		start := off
		off = skipName(msg, off)
		if off < 0 || off+10 > len(msg) {
			return formErr
		}
		rdlen := int(binary.BigEndian.Uint16(msg[off+8:]))
		end := off + 10 + rdlen
		if end > len(msg) {
			return formErr
		}
		if binary.BigEndian.Uint16(msg[off:]) == dns.TypeOPT {
			// RFC 6891 §6.1.1: one OPT at most, owned by the root, additional section.
			if q.opt || i < before || msg[start] != 0 || !validOptions(msg[off+10:end]) {
				return formErr
			}
			q.opt = true
			q.udpSize = binary.BigEndian.Uint16(msg[off+2:])
			version = msg[off+5]
			q.do = msg[off+6]&0x80 != 0
			q.options = msg[off+10 : end]
		}
		off = end
	}
	if version != 0 {
		return badVers
	}
	return accept
}

// skipName returns the offset behind the name at off, or -1.
func skipName(msg []byte, off int) int {
	start := off
	for off < len(msg) && off-start < maxNameLen {
		n := int(msg[off])
		switch {
		case n == 0:
			return off + 1
		case n&0xc0 == 0xc0:
			if off+2 > len(msg) {
				return -1
			}
			return off + 2
		case n > 63:
			return -1
		}
		off += 1 + n
	}
	return -1
}

// validOptions reports whether the options of an OPT record fill it exactly.
func validOptions(rdata []byte) bool {
	for len(rdata) > 0 {
		if len(rdata) < 4 {
			return false
		}
		n := 4 + int(binary.BigEndian.Uint16(rdata[2:]))
		if n > len(rdata) {
			return false
		}
		rdata = rdata[n:]
	}
	return true
}

// judge returns the verdict on a well-formed question.
func (q *Query) judge() verdict {
	switch q.qtype {
	case dns.TypeNone, dns.TypeOPT:
		return formErr
	case dns.TypeNXNAME:
		return nxnameType
	case dns.TypeAXFR, dns.TypeIXFR:
		return refuse
	case dns.TypeTKEY, dns.TypeTSIG, dns.TypeMAILA, dns.TypeMAILB:
		return notImp
	}
	if q.qclass == dns.ClassCHAOS && q.qtype == dns.TypeTXT && string(q.lower) == idServer {
		return identify
	}
	if q.qclass != dns.ClassINET {
		return refuse
	}
	return accept
}

// copyTo makes dst an independent copy of q. It reuses dst.buf.
func (q *Query) copyTo(dst *Query) {
	buf, n := dst.buf[:0], len(q.name)
	keyEnd := n + len(q.lower) + keyTail
	buf = append(slices.Grow(buf, keyEnd+len(q.options)), q.name...)
	buf = append(append(buf, q.lower...), q.key[min(n, len(q.key)):]...)
	buf = append(buf[:keyEnd], q.options...)
	*dst = *q
	dst.memory, dst.buf, dst.wire = nil, buf, nil
	dst.name, dst.options = buf[:n:n], buf[keyEnd:]
	dst.lower, dst.key = buf[n:2*n:keyEnd], buf[n:n+len(q.key):keyEnd]
}

// limit is the size in bytes of the largest reply that the client accepts.
func (q *Query) limit() int {
	switch {
	case q.tcp, q.inner:
		return dns.MaxMsgSize - 1
	case !q.opt:
		return minUDPSize
	}
	return int(min(max(q.udpSize, minUDPSize), maxUDPSize))
}

// presentation is the name in presentation form, for logs.
func (q *Query) presentation() string { return dnsname.String(q.name) }
