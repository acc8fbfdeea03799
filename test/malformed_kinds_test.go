package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// kind is a class of packets and the rcodes that the named RFC allows for all of
// them. No rcode means no reply.
type kind struct {
	name   string
	rcodes []int
	make   generate
}

// answered is the rcode of the test's upstream, for an unusual packet that is
// still a valid question.
var answered = []int{dns.RcodeNameError}

func rcodes(r ...int) []int { return r }

// kinds is the table of generated packets.
func kinds(t *testing.T) []kind {
	t.Helper()
	m := maker{
		plain: pack(t, lab.Query("a.b.example.org.", dns.TypeA)),
		edns:  pack(t, lab.Query("a.b.example.org.", dns.TypeA).SetEdns0(1232, false)),
	}
	return slices.Concat(m.noQueries(), m.opcodes(), m.counts(), m.names(), m.opts(), m.options(),
		m.classes(), m.types(), m.flags(), m.records())
}

// maker derives packets from two valid queries for the same question.
type maker struct {
	plain, edns []byte
}

// generate makes one packet.
type generate = func(*rand.Rand) []byte

// set overwrites bytes of b.
func set(b []byte, off int, v ...byte) generate {
	return func(*rand.Rand) []byte {
		b := bytes.Clone(b)
		copy(b[off:], v)
		return b
	}
}

// setOPT overwrites bytes of the OPT record, counted from its owner name.
func (m maker) setOPT(off int, v ...byte) generate { return set(m.edns, len(m.plain)+off, v...) }

// question is a header with one question whose name is given in wire format.
func (m maker) question(name string) generate {
	return func(*rand.Rand) []byte {
		b := append(bytes.Clone(m.plain[:12]), name...)
		return append(b, 0, 1, 0, 1)
	}
}

// asked is the plain query with another type and class.
func (m maker) asked(qtype, qclass uint16) generate {
	return func(*rand.Rand) []byte {
		b := bytes.Clone(m.plain)
		binary.BigEndian.PutUint16(b[len(b)-4:], qtype)
		binary.BigEndian.PutUint16(b[len(b)-2:], qclass)
		return b
	}
}

// additional adds records to the plain query and sets their count.
func (m maker) additional(count byte, records ...string) generate {
	return func(*rand.Rand) []byte {
		b := bytes.Clone(m.plain)
		b[11] = count
		return append(b, strings.Join(records, "")...)
	}
}

// opt is an OPT record up to its RDLENGTH.
const opt = "\x00\x00\x29\x04\xd0\x00\x00\x00\x00"

// noQueries have no ID or are no queries, so there is no client to answer (RFC
// 1035 §4.1.1).
func (m maker) noQueries() []kind {
	return []kind{
		{"empty", nil, func(*rand.Rand) []byte { return nil }},
		{"less than a header", nil, func(r *rand.Rand) []byte { return bytes.Clone(m.plain[:r.IntN(12)]) }},
		{"a response", nil, set(m.plain, 2, 0x81, 0x80)},
		{"a response of any opcode", nil, func(r *rand.Rand) []byte { return set(m.edns, 2, 0x80|byte(r.IntN(128)))(r) }},
	}
}

// opcodes are opcodes other than QUERY: an unknown one gets a reply too (RFC 8906 §3.1.4).
func (m maker) opcodes() []kind {
	notImp := rcodes(dns.RcodeNotImplemented)
	return []kind{
		{"opcode IQUERY", notImp, set(m.plain, 2, 1<<3)},
		{"opcode STATUS", notImp, set(m.plain, 2, 2<<3)},
		{"opcode NOTIFY", notImp, set(m.edns, 2, 4<<3)},
		{"opcode UPDATE", notImp, set(m.edns, 2, 5<<3)},
		{"any other opcode", notImp, func(r *rand.Rand) []byte { return set(m.plain, 2, byte(6+r.IntN(10))<<3)(r) }},
	}
}

// counts are header counts that do not match the message (RFC 1035 §4.1.1), and
// other numbers of questions than one (RFC 9619 §4).
func (m maker) counts() []kind {
	formErr := rcodes(dns.RcodeFormatError)
	return []kind{
		{"no question", formErr, set(m.plain[:12], 4, 0, 0)},
		{"header alone", formErr, set(m.plain[:12], 0)},
		{"QDCOUNT 2 with one question", formErr, set(m.plain, 4, 0, 2)},
		{"QDCOUNT 65535", formErr, set(m.plain, 4, 0xff, 0xff)},
		{"two questions", formErr, func(*rand.Rand) []byte {
			b := append(bytes.Clone(m.plain), m.plain[12:]...)
			b[5] = 2
			return b
		}},
		{"ANCOUNT 1 without an answer", formErr, set(m.plain, 7, 1)},
		{"NSCOUNT 65535", formErr, set(m.plain, 8, 0xff, 0xff)},
		{"ARCOUNT 65535", formErr, set(m.edns, 10, 0xff, 0xff)},
		{"ARCOUNT 0 with an OPT record", answered, set(m.edns, 10, 0, 0)},
		{"bytes after the message", answered, func(r *rand.Rand) []byte { return append(bytes.Clone(m.plain), noise(r, 40)...) }},
	}
}

// names are names as of RFC 1035 §2.3.4, §3.1, §4.1.4, RFC 9267.
func (m maker) names() []kind {
	formErr := rcodes(dns.RcodeFormatError)
	long := strings.Repeat("\x3f"+strings.Repeat("a", 63), 3)
	return []kind{
		{"pointer to itself", formErr, m.question("\xc0\x0c")},
		{"pointer to the header", formErr, m.question("\xc0\x00")},
		{"a ring of pointers", formErr, m.question("\x01a\xc0\x10\xc0\x0c")},
		{"pointer past the end", formErr, m.question("\xff\xff")},
		{"half a pointer", formErr, func(*rand.Rand) []byte { return append(bytes.Clone(m.plain[:12]), 0xc0) }},
		{"label type 01", formErr, m.question("\x41a\x00")},
		{"label type 10", formErr, m.question("\x81a\x00")},
		{"label past the end", formErr, func(*rand.Rand) []byte { return append(bytes.Clone(m.plain[:12]), 63, 'a') }},
		{"name of 256 octets", formErr, m.question(long + "\x3e" + strings.Repeat("b", 62) + "\x00")},
		{"name without an end", formErr, m.question(strings.Repeat("\x01a", 600))},
		{"name of 255 octets", answered, m.question(long + "\x3d" + strings.Repeat("b", 61) + "\x00")},
		{"127 labels", answered, m.question(strings.Repeat("\x01a", 127) + "\x00")},
		{"zero bytes and dots in a label", answered, m.question("\x04a\x00.\\\x07example\x00")},
		{"bytes above 127 in a label", answered, m.question("\x03\xff\x80\xc3\x07example\x00")},
	}
}

// opts are OPT records in the wrong place or of the wrong form, or of another
// version (RFC 6891 §6.1).
func (m maker) opts() []kind {
	formErr, badVers := rcodes(dns.RcodeFormatError), rcodes(dns.RcodeBadVers)
	return []kind{
		{"two OPT", formErr, m.additional(2, opt+"\x00\x00", opt+"\x00\x00")},
		{"OPT with an owner name", formErr, m.additional(1, "\x01x"+opt+"\x00\x00")},
		{"OPT in the answer section", formErr, set(m.edns, 6, 0, 1, 0, 0, 0, 0)},
		{"OPT in the authority section", formErr, set(m.edns, 6, 0, 0, 0, 1, 0, 0)},
		{"OPT with RDLENGTH past the end", formErr, m.additional(1, opt+"\x00\x09")},
		{"EDNS version 1", badVers, m.setOPT(6, 1)},
		{"EDNS version 255", badVers, m.setOPT(6, 255)},
		{"all EDNS flags", answered, m.setOPT(7, 0xff, 0xff)},
		{"an extended rcode in a query", answered, m.setOPT(5, 0xff)},
		{"UDP size 0", answered, m.setOPT(3, 0, 0)},
		{"UDP size 65535", answered, m.setOPT(3, 0xff, 0xff)},
	}
}

// options are truncated or repeated EDNS options (RFC 6891 §6.1.2).
func (m maker) options() []kind {
	formErr := rcodes(dns.RcodeFormatError)
	return []kind{
		{"half an option", formErr, m.additional(1, opt+"\x00\x03\x00\x0a\x00")},
		{"an option longer than OPT", formErr, m.additional(1, opt+"\x00\x04\x00\x0a\x00\x08")},
		{"50 NSID options", answered, m.additional(1, opt+"\x00\xc8", strings.Repeat("\x00\x03\x00\x00", 50))},
		{"50 cookies", answered, m.additional(1, opt+"\x02\x58", strings.Repeat("\x00\x0a\x00\x0812345678", 50))},
		{"50 subnets and paddings", answered, m.additional(1, opt+"\x02\x58", strings.Repeat("\x00\x08\x00\x04\x00\x01\x00\x00\x00\x0c\x00\x00", 50))},
		{"300 unknown options", answered, m.additional(1, opt+"\x04\xb0", strings.Repeat("\xff\xfe\x00\x00", 300))},
	}
}

// classes are classes that nodens does not serve (RFC 1035 §3.2.4, RFC 6895
// §3.2).
func (m maker) classes() []kind {
	var list []kind
	for _, class := range []uint16{0, dns.ClassCHAOS, dns.ClassHESIOD, dns.ClassNONE, dns.ClassANY, 4711} {
		list = append(list, kind{fmt.Sprintf("class %d", class), rcodes(dns.RcodeRefused), m.asked(dns.TypeA, class)})
	}
	return list
}

// types are types that no query may have (RFC 6895 §3.1, RFC 9824 §3.4), and
// unknown ones, which it may (RFC 3597).
func (m maker) types() []kind {
	var list []kind
	for qtype, want := range map[uint16][]int{
		dns.TypeNone:   rcodes(dns.RcodeFormatError),
		dns.TypeOPT:    rcodes(dns.RcodeFormatError),
		dns.TypeNXNAME: rcodes(dns.RcodeFormatError),
		dns.TypeAXFR:   rcodes(dns.RcodeRefused),
		dns.TypeIXFR:   rcodes(dns.RcodeRefused),
		dns.TypeTSIG:   rcodes(dns.RcodeNotImplemented),
		dns.TypeTKEY:   rcodes(dns.RcodeNotImplemented),
		65280:          answered,
		65535:          answered,
	} {
		list = append(list, kind{fmt.Sprintf("type %d", qtype), want, m.asked(qtype, dns.ClassINET)})
	}
	slices.SortFunc(list, func(a, b kind) int { return strings.Compare(a.name, b.name) })
	return list
}

// flags are flags without a meaning in a query (RFC 1035 §4.1.1, RFC 8906 §3.1.3).
func (m maker) flags() []kind {
	return []kind{
		{"all flags", answered, set(m.plain, 2, 0x07, 0xf0)},
		{"an rcode in the query", answered, set(m.plain, 3, 0x0f)},
		{"RD clear", answered, set(m.plain, 2, 0, 0)},
	}
}

// records are records that a query does not need: skipped or refused, never used.
func (m maker) records() []kind {
	either := rcodes(dns.RcodeNameError, dns.RcodeFormatError)
	return []kind{
		{"a record in every section", either, func(*rand.Rand) []byte {
			const a = "\x00\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x01"
			b := append(bytes.Clone(m.plain), a+a+a...)
			b[7], b[9], b[11] = 1, 1, 1
			return b
		}},
		{"pointer ring as an owner name", either, m.additional(1, "\xc0\x22\x00\x01\x00\x01\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00")},
		{"a TSIG", append(either, dns.RcodeNotAuth), m.additional(1, "\x03key\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x00")},
		{"the longest datagram", either, func(r *rand.Rand) []byte {
			return append(bytes.Clone(m.plain), noise(r, 60_000)...)
		}},
	}
}

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// mutate changes bits, bytes, lengths or ranges of msg in one to four places.
func mutate(r *rand.Rand, msg []byte) []byte {
	for range 1 + r.IntN(4) {
		if len(msg) == 0 {
			return msg
		}
		i := r.IntN(len(msg))
		switch r.IntN(7) {
		case 0:
			msg[i] ^= 1 << r.IntN(8)
		case 1:
			msg[i] = byte(r.Uint32())
		case 2:
			msg[i] = []byte{0, 1, 63, 64, 0x7f, 0x80, 0xc0, 0xff}[r.IntN(8)]
		case 3:
			msg = msg[:i]
		case 4:
			msg = append(msg[:i:i], append(noise(r, 1+r.IntN(8)), msg[i:]...)...)
		case 5:
			msg = append(msg, msg[i:]...)
		case 6:
			msg = append(msg[:i:i], msg[min(len(msg), i+1+r.IntN(8)):]...)
		}
	}
	return msg
}

// judge returns the expected rcodes of a mutation. It has its own rules and looks
// only at header and question unless the rest is unambiguous. It relies on
// miekg/dns, which nodens's parser does not use.
func judge(msg []byte) []int {
	switch {
	case len(msg) < 12, msg[2]&0x80 != 0:
		return nil
	case msg[2]>>3&0xf != 0:
		return rcodes(dns.RcodeNotImplemented)
	case binary.BigEndian.Uint16(msg[4:]) != 1:
		return rcodes(dns.RcodeFormatError)
	}
	end, ok := endOfName(msg, 12)
	if !ok || end+4 > len(msg) {
		return rcodes(dns.RcodeFormatError)
	}
	if records := binary.BigEndian.Uint16(msg[6:]) | binary.BigEndian.Uint16(msg[8:]) | binary.BigEndian.Uint16(msg[10:]); records != 0 {
		return judgeRecords(msg, end)
	}
	return judgeQuestion(msg, end)
}

// judgeRecords accepts any rcode if a record is incomplete or misplaced, but
// expects a reply.
func judgeRecords(msg []byte, end int) []int {
	either := append(judgeQuestion(msg, end), dns.RcodeFormatError, dns.RcodeBadVers)
	var m dns.Msg
	if m.Unpack(msg) != nil || len(m.Extra) != 1 || len(m.Answer)+len(m.Ns) > 0 ||
		[3]uint16{binary.BigEndian.Uint16(msg[6:]), binary.BigEndian.Uint16(msg[8:]), binary.BigEndian.Uint16(msg[10:])} != [3]uint16{0, 0, 1} {
		return either
	}
	o, ok := m.Extra[0].(*dns.OPT)
	switch {
	case !ok || o.Hdr.Name != ".":
		return either
	case o.Version() != 0:
		return rcodes(dns.RcodeBadVers)
	}
	return judgeQuestion(msg, end)
}

// judgeQuestion judges type and class, which are at end.
func judgeQuestion(msg []byte, end int) []int {
	qtype, qclass := binary.BigEndian.Uint16(msg[end:]), binary.BigEndian.Uint16(msg[end+2:])
	switch {
	case qtype == dns.TypeNone || qtype == dns.TypeOPT || qtype == dns.TypeNXNAME:
		return rcodes(dns.RcodeFormatError)
	case qtype >= dns.TypeTKEY && qtype <= dns.TypeMAILA:
		return rcodes(dns.RcodeNotImplemented, dns.RcodeRefused)
	case qclass != dns.ClassINET:
		return rcodes(dns.RcodeRefused)
	}
	return rcodes(dns.RcodeNameError)
}

// endOfName returns the offset after an uncompressed name at off of at most 255
// octets.
func endOfName(msg []byte, off int) (int, bool) {
	for start := off; off < len(msg); {
		n := int(msg[off])
		off += 1 + n
		switch {
		case n > 63 || off-start > 255:
			return 0, false
		case n == 0:
			return off, true
		}
	}
	return 0, false
}
