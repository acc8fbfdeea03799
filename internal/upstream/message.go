package upstream

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the largest UDP reply that we ask for, RFC 9715.
const udpSize = 1232

// question is what an Exchange asks, independent of any client.
type question struct {
	dns.Question
	rd, cd, ad, do bool
	options        []byte // of the OPT record, packed

	name []byte // in wire format; what a reply has to repeat
}

// newQuestion takes from m what may leave this host: of options, those given as
// EDNS0_LOCAL.
func newQuestion(m *dns.Msg) (*question, error) {
	if m == nil || len(m.Question) != 1 {
		return nil, fmt.Errorf("query has not one question")
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

// packOptions packs the options that are given with their data, RFC 6891
// section 6.1.2.
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

// query is one message that goes out.
type query struct {
	*question
	edns, stream bool

	id     uint16
	framed []byte // two octets of length, then the message: RFC 1035 section 4.2.2
}

func (q *query) datagram() []byte { return q.framed[2:] }

// newQuery makes a message of its own: a new unpredictable ID, the flags of q,
// and at most an OPT record with the options of q.
func (q *question) newQuery(edns bool) *query { return q.pack(edns, false) }

// pack makes a query for UDP, or one for TCP or TLS: the OPT record of that
// asks how long the server keeps an idle connection, RFC 7828.
func (q *question) pack(edns, stream bool) *query {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	b := make([]byte, 2, 2+12+len(q.name)+4+11+len(q.options)+4)
	b = append(b, id[0], id[1], flag(q.rd, 0x01), flag(q.cd, 0x10)|flag(q.ad, 0x20), 0, 1, 0, 0, 0, 0, 0, flag(edns, 1))
	b = append(b, q.name...)
	b = binary.BigEndian.AppendUint16(b, q.Qtype)
	b = binary.BigEndian.AppendUint16(b, q.Qclass)
	if edns {
		b = append(b, 0, 0, byte(dns.TypeOPT), udpSize>>8, udpSize&0xff, 0, 0, flag(q.do, 0x80), 0)
		options := q.options
		if stream {
			options = appendOption(slices.Clip(options), dns.EDNS0TCPKEEPALIVE, nil)
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(options)))
		b = append(b, options...)
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	return &query{question: q, edns: edns, stream: stream, id: binary.BigEndian.Uint16(id[:]), framed: b}
}

// keepalive returns how long the sender of m keeps a connection that is idle,
// if it says so, RFC 7828 section 3.1.
func keepalive(m *dns.Msg) (time.Duration, bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return 0, false
	}
	for _, o := range opt.Option {
		if k, ok := o.(*dns.EDNS0_TCP_KEEPALIVE); ok {
			return time.Duration(k.Timeout) * 100 * time.Millisecond, true
		}
	}
	return 0, false
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
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

// restore gives the answer the question as it was asked: an upstream may
// answer in another case.
func (q *question) restore(m *dns.Msg) {
	m.Question = []dns.Question{q.Question}
	for _, rr := range m.Answer {
		if h := rr.Header(); h.Name != q.Name && strings.EqualFold(h.Name, q.Name) {
			h.Name = q.Name
		}
	}
}

// isAnswer reports whether a reply with this rcode says something about the
// name rather than about the server.
func isAnswer(rcode int) bool {
	return rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError || rcode == dns.RcodeYXDomain
}

// isLame reports whether m looks like the referral of a server that does not
// serve the name: it has no answer, knows nobody's SOA and recursed not.
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

// deniesEDNS reports whether a server may have stumbled over our OPT record,
// RFC 6891 section 7. An OPT record of its own shows that it knows them.
func deniesEDNS(m *dns.Msg) bool {
	switch m.Rcode {
	case dns.RcodeBadVers:
		return true
	case dns.RcodeFormatError, dns.RcodeNotImplemented:
		return m.IsEdns0() == nil
	}
	return false
}
