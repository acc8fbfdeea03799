package upstream

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"
)

// verdict says whether a message replies to our query, and if not why; its
// text is the label of the ignored replies.
type verdict string

const (
	accepted      verdict = "accepted"
	tooShort      verdict = "short"
	notResponse   verdict = "not_response"
	wrongID       verdict = "id"
	wrongOpcode   verdict = "opcode"
	wrongQuestion verdict = "question"
	undecodable   verdict = "undecodable"
)

// match reads reply, in wire format, as the reply to q: the same ID, opcode
// QUERY and exactly the same question, RFC 5452 section 9.1. The name may
// differ in case. The message is returned with verdict accepted only.
//
// Who does not want to answer may send back no more than a header: a server that
// cannot read our OPT record FORMERR or NOTIMP (RFC 6891 section 7), unbound
// REFUSED to clients that its access-control keeps out. That is accepted.
//
// A reply with TC set whose records do not decode was cut within a record; it
// is returned without records. Without TC the answer and authority sections have
// to be as long as the header says: a reply that was cut between two records is
// no denial. Of additional records fewer are forgiven. An OPT record elsewhere
// than among these is an error (RFC 6891 section 6.1.1) and would reach clients.
func (q *query) match(reply []byte) (*dns.Msg, verdict) {
	if v := q.matchHeader(reply); v != accepted {
		return nil, v
	}
	m, cut := new(dns.Msg), reply[2]&0x02 != 0
	switch err := m.Unpack(reply); {
	case err == nil && !hasOPT(m.Answer) && !hasOPT(m.Ns) && (cut || isWhole(reply, m)):
		return m, accepted
	case cut:
		return q.truncated(reply), accepted
	}
	return nil, undecodable
}

func hasOPT(rrs []dns.RR) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
}

// isWhole reports whether m has the records that its header promises.
func isWhole(reply []byte, m *dns.Msg) bool {
	return int(binary.BigEndian.Uint16(reply[6:])) == len(m.Answer) && int(binary.BigEndian.Uint16(reply[8:])) == len(m.Ns)
}

func (q *query) matchHeader(reply []byte) verdict {
	switch {
	case len(reply) < 12:
		return tooShort
	case reply[2]&0x80 == 0:
		return notResponse
	case binary.BigEndian.Uint16(reply) != q.id:
		return wrongID
	case reply[2]&0x78 != 0:
		return wrongOpcode
	case isBareError(reply):
	case binary.BigEndian.Uint16(reply[4:]) != 1 || !q.asks(reply[12:]):
		return wrongQuestion
	}
	return accepted
}

// isBareError reports whether reply is a header with FORMERR, NOTIMP or REFUSED,
// without a question and records.
func isBareError(reply []byte) bool {
	rcode := int(reply[3] & 0x0f)
	return len(reply) == 12 && binary.BigEndian.Uint64(reply[4:]) == 0 &&
		(rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeRefused)
}

// asks reports whether b begins with q's question. Upper and lower case are
// the same; a length octet is at most 63 and so never taken for a letter.
func (q *question) asks(b []byte) bool {
	n := len(q.name)
	if len(b) < n+4 {
		return false
	}
	for i, c := range q.name {
		if lower(b[i]) != lower(c) {
			return false
		}
	}
	return binary.BigEndian.Uint16(b[n:]) == q.Qtype && binary.BigEndian.Uint16(b[n+2:]) == q.Qclass
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// truncated makes the header of reply, which matched, a message with TC.
func (q *query) truncated(reply []byte) *dns.Msg {
	return &dns.Msg{
		MsgHdr: dns.MsgHdr{
			Id: q.id, Response: true, Truncated: true,
			Authoritative:      reply[2]&0x04 != 0,
			RecursionDesired:   reply[2]&0x01 != 0,
			RecursionAvailable: reply[3]&0x80 != 0,
			CheckingDisabled:   reply[3]&0x10 != 0,
			Rcode:              int(reply[3] & 0x0f),
		},
		Question: []dns.Question{q.Question},
	}
}
