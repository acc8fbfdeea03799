package upstream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// question is the question of an exchange, without data about the client.
type question struct {
	dns.Question
	rd, cd, ad, do bool
	options        []byte // of the OPT record, packed

	name []byte // in wire format; a reply must repeat it
}

// newQuestion takes the parts of m that may leave this host. Of the EDNS options,
// only those of type EDNS0_LOCAL may.
func newQuestion(m *dns.Msg) (*question, error) {
	if m == nil || len(m.Question) != 1 {
		return nil, fmt.Errorf("the query does not have exactly one question")
	}
	q := &question{Question: m.Question[0], rd: m.RecursionDesired, cd: m.CheckingDisabled, ad: m.AuthenticatedData}
	if opt := m.IsEdns0(); opt != nil {
		q.do = opt.Do()
		q.options = packOptions(opt.Option)
	}
	var buf [256]byte
	n, err := dns.PackDomainName(dns.Fqdn(q.Name), buf[:], 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("query for %q: %w", q.Name, err)
	}
	q.name = append([]byte(nil), buf[:n]...)
	return q, nil
}

// packOptions packs the EDNS0_LOCAL options, RFC 6891 section 6.1.2.
func packOptions(options []dns.EDNS0) []byte {
	var b []byte
	for _, o := range options {
		if local, ok := o.(*dns.EDNS0_LOCAL); ok {
			b = appendOption(b, local.Code, local.Data)
		}
	}
	return b
}

func appendOption(b []byte, code uint16, data []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// learn records how long the sender of m keeps an idle connection, if m has that
// option (RFC 7828 section 3.1).
func (c *stream) learn(m *dns.Msg) {
	opt := m.IsEdns0()
	if opt == nil {
		return
	}
	for _, o := range opt.Option {
		if k, ok := o.(*dns.EDNS0_TCP_KEEPALIVE); ok {
			c.set.mu.Lock()
			c.keep = time.Duration(k.Timeout) * 100 * time.Millisecond
			c.set.mu.Unlock()
		}
	}
}

// takeEDE removes the OPT record, which is hop-by-hop (RFC 6891 section 6.1),
// and returns the Extended DNS Errors it held.
func takeEDE(m *dns.Msg) (edes []dns.EDNS0_EDE) {
	kept := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			kept = append(kept, rr)
			continue
		}
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				edes = append(edes, *e)
			}
		}
	}
	m.Extra = kept
	return edes
}

// restore puts the original question into the answer. An upstream may change the
// case of the name.
func (q *question) restore(m *dns.Msg) {
	m.Question = []dns.Question{q.Question}
	for _, rr := range m.Answer {
		if h := rr.Header(); h.Name != q.Name && strings.EqualFold(h.Name, q.Name) {
			h.Name = q.Name
		}
	}
}

// isAnswer reports whether rcode is about the name and not about the server.
func isAnswer(rcode int) bool {
	return rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError || rcode == dns.RcodeYXDomain
}

// isLame reports whether m looks like the referral of a server that does not
// serve the name: no answer, no SOA, no recursion.
func isLame(m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || m.Authoritative || m.RecursionAvailable || m.Truncated || len(m.Answer) > 0 {
		return false
	}
	referral := false
	for _, rr := range m.Ns {
		switch rr.Header().Rrtype {
		case dns.TypeSOA:
			return false
		case dns.TypeNS:
			referral = true
		}
	}
	return referral
}

// deniesEDNS reports whether m may reject the OPT record of the query, RFC 6891
// section 7. A server that sends an OPT record itself supports EDNS.
func deniesEDNS(m *dns.Msg) bool {
	switch m.Rcode {
	case dns.RcodeBadVers:
		return true
	case dns.RcodeFormatError, dns.RcodeNotImplemented:
		return m.IsEdns0() == nil
	}
	return false
}

// verdict is the reason why a message is or is not the reply to a query. It is a
// label value of nodens_upstream_ignored_replies_total.
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

// match parses reply, in wire format, as the reply to q: it has the same ID,
// opcode QUERY and exactly the same question, RFC 5452 section 9.1. The name may
// differ in case. The message is returned with verdict accepted only.
//
// A bare header is accepted as an error reply. Servers that cannot read the OPT
// record send FORMERR or NOTIMP that way (RFC 6891 section 7), and unbound sends
// REFUSED to clients that its access-control excludes.
//
// A reply with TC set whose records do not decode was cut within a record; it is
// returned without records. Without TC the answer and authority sections must have
// as many records as the header counts: a reply that was cut between two records is
// no denial. Missing additional records are accepted. An OPT record in another
// section is an error (RFC 6891 section 6.1.1) and would reach clients.
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

// isWhole reports whether m has the records that its header counts.
func isWhole(reply []byte, m *dns.Msg) bool {
	return int(binary.BigEndian.Uint16(reply[6:])) == len(m.Answer) && int(binary.BigEndian.Uint16(reply[8:])) == len(m.Ns)
}

// unasked is the verdict on a message whose ID is that of no query.
func unasked(b []byte) verdict {
	switch {
	case len(b) < 12:
		return tooShort
	case b[2]&0x80 == 0:
		return notResponse
	}
	return wrongID
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
	case binary.BigEndian.Uint16(reply[4:]) == 1 && q.asks(reply[12:]), isBareError(reply):
		return accepted
	}
	return wrongQuestion
}

// isBareError reports whether reply is a header with FORMERR, NOTIMP or REFUSED
// and nothing else.
func isBareError(reply []byte) bool {
	rcode := int(reply[3] & 0x0f)
	return len(reply) == 12 && binary.BigEndian.Uint64(reply[4:]) == 0 &&
		(rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeRefused)
}

// asks reports whether b begins with q's question, in any case. A length octet
// is at most 63, which is no letter.
func (q *question) asks(b []byte) bool {
	n := len(q.name)
	if len(b) < n+4 || !bytes.Equal(b[:n], q.name) && !equalFold(b[:n], q.name) {
		return false
	}
	return binary.BigEndian.Uint16(b[n:]) == q.Qtype && binary.BigEndian.Uint16(b[n+2:]) == q.Qclass
}

func equalFold(a, b []byte) bool {
	for i, c := range b {
		if lower(a[i]) != lower(c) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// truncated makes a message with TC of the header of reply, which matched.
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
