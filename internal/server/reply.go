package server

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// optLen is the length of an OPT record without options (RFC 6891 §6.1.2).
const optLen = 11

// ede is an Extended DNS Error (RFC 8914). Code 0 means "other", so set shows
// whether there is an error.
type ede struct {
	set  bool
	code uint16
	text string
}

func (e ede) len() int {
	if !e.set {
		return 0
	}
	return 4 + 2 + len(e.text)
}

// optLen is the length of the OPT record in the reply to q.
func (q *Query) optLen(note ede) int {
	n := optLen + note.len()
	if q.nsid != "" {
		n += 4 + len(q.nsid)
	}
	return n
}

// view is how a reply presents an entry.
type view struct {
	rcode  int // of the reply
	maxTTL uint32
	bare   bool // the question only, without the records of the entry
	note   ede
	result normalised
}

// noMaxTTL does not lower TTLs.
const noMaxTTL = ^uint32(0)

// asIs is the view that changes nothing.
func asIs(e *cache.Entry, r normalised) view {
	return view{rcode: e.Rcode(), maxTTL: noMaxTTL, result: r}
}

// appendEntry appends the reply to q: the packed bytes of entry as v presents
// them, with the client's ID, flags, spelling of the name and OPT. age is for
// Entry.AgeTTLs. cached clears AA, because a cache is no authority (RFC 1035
// §4.1.1).
func appendEntry(dst []byte, q *Query, entry *cache.Entry, age uint32, cached bool, v view) []byte {
	if v.rcode > rcodeMask && !q.opt {
		return appendError(dst, q, dns.RcodeServerFailure, ede{})
	}
	start := len(dst)
	dst = append(dst, entry.Msg()...)
	msg := dst[start:]
	binary.BigEndian.PutUint16(msg, q.id)
	flags := binary.BigEndian.Uint16(msg[2:])
	if v.rcode != entry.Rcode() { // a changed answer is neither authoritative nor validated
		flags = flags&^(flagAA|flagAD|rcodeMask) | uint16(v.rcode)
	}
	binary.BigEndian.PutUint16(msg[2:], replyFlags(flags, q, cached))
	copy(msg[headerLen:], q.name)
	switch {
	case v.bare:
		clear(msg[6:headerLen])
		msg = msg[:headerLen+len(q.name)+4]
		dst = dst[:start+len(msg)]
	default:
		entry.AgeTTLs(msg, age)
		if v.maxTTL != noMaxTTL {
			capTTLs(msg, v.maxTTL)
		}
	}

	reserve := 0
	if q.opt {
		reserve = q.optLen(v.note)
	}
	if limit := q.limit() - reserve; len(msg) > limit {
		msg = entry.Truncate(msg, limit)
		dst = dst[:start+len(msg)]
	}
	if q.opt {
		dst = appendOPT(dst, start, q, v.rcode, v.note)
	}
	return dst
}

// replyFlags are the flags of the header: upstream's for the answer, the client's
// for the question, and RA. AD is set only for clients that set AD or DO (RFC
// 6840 §5.7, §5.8).
func replyFlags(stored uint16, q *Query, cached bool) uint16 {
	f := stored & (flagAA | flagTC | flagAD | rcodeMask)
	if cached {
		f &^= flagAA
	}
	if !q.do && q.flags&flagAD == 0 {
		f &^= flagAD
	}
	return f | flagQR | flagRA | q.flags&(flagRD|flagCD)
}

// appendError appends a reply without records. It has the question if that could
// be read.
func appendError(dst []byte, q *Query, rcode int, note ede) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, q.id)
	flags := flagQR | flagRA | q.flags&(opcodeMask|flagRD|flagCD) | uint16(rcode)&rcodeMask
	dst = binary.BigEndian.AppendUint16(dst, flags)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	if q.name != nil {
		dst[start+5] = 1
		dst = append(dst, q.name...)
		dst = binary.BigEndian.AppendUint16(dst, q.qtype)
		dst = binary.BigEndian.AppendUint16(dst, q.qclass)
	}
	if q.opt {
		dst = appendOPT(dst, start, q, rcode, note)
	}
	return dst
}

// appendOPT appends an OPT record to the message that begins at start, and counts
// it in the header.
func appendOPT(dst []byte, start int, q *Query, rcode int, note ede) []byte {
	dst = append(dst, 0) // owner: the root
	dst = binary.BigEndian.AppendUint16(dst, dns.TypeOPT)
	dst = binary.BigEndian.AppendUint16(dst, maxUDPSize)
	var do byte
	if q.do {
		do = 0x80
	}
	dst = append(dst, byte(rcode>>4), 0, do, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(q.optLen(note)-optLen))
	if q.nsid != "" {
		dst = binary.BigEndian.AppendUint16(dst, dns.EDNS0NSID)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(q.nsid)))
		dst = append(dst, q.nsid...)
	}
	if note.set {
		dst = binary.BigEndian.AppendUint16(dst, dns.EDNS0EDE)
		dst = binary.BigEndian.AppendUint16(dst, uint16(2+len(note.text)))
		dst = binary.BigEndian.AppendUint16(dst, note.code)
		dst = append(dst, note.text...)
	}
	count := dst[start+10 : start+12]
	binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
	return dst
}

// appendVerdict appends the reply to a message with verdict v. identity is
// Config.Identity.
func appendVerdict(dst []byte, q *Query, v verdict, identity string) []byte {
	switch v {
	case identify:
		return appendIdentity(dst, q, identity)
	case formErr:
		return appendError(dst, q, dns.RcodeFormatError, ede{})
	case notImp:
		return appendError(dst, q, dns.RcodeNotImplemented, ede{})
	case badVers:
		return appendError(dst, q, dns.RcodeBadVers, ede{})
	case refuse:
		return appendError(dst, q, dns.RcodeRefused, ede{})
	case nxnameType:
		return appendError(dst, q, dns.RcodeFormatError, ede{set: true, code: edeInvalidQueryType})
	}
	return dst
}
