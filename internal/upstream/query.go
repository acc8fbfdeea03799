package upstream

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// udpSize is the largest UDP reply that nodens accepts, in bytes (RFC 9715).
	udpSize = 1232
	// smallSize passes every path (RFC 6891 section 6.2.5).
	smallSize = 512
)

// query is a question on its way to one server, in one form and over one port or
// connection. If its server requires another form (TCP, no OPT record), a new query
// replaces it. Fields up to id do not change once it is sent.
type query struct {
	*question
	a      *attempt
	s      *server
	stream bool   // over TCP or TLS
	size   uint16 // in the OPT record; 0: there is no OPT record
	id     uint16

	// via is the port or the connection on which the query waits for a reply; nil: no
	// reply can come. release ends the wait. A port or connection that did not bring a
	// reply takes no new query.
	via interface {
		release(q *query, answered bool)
	}

	// guarded by a.mu
	reused    bool      // conn was in use before
	renewed   bool      // this replaces a query whose reused connection failed
	started   time.Time // when the first form was sent
	sent      time.Time
	late      time.Time // without a reply until then, the query counts as failed
	denied    bool      // the server denied the form with an OPT record
	cut       *dns.Msg  // the truncated reply that made this go over TCP
	hasResult bool      // err and rcode are the result
	err       error     // nil: rcode counts
	rcode     int
}

// shape chooses the form of q. After a query without a reply, the form must change,
// because the path may lose large replies or queries with an OPT record. A hedge,
// and a question that needs its OPT record, allow a small reply only. Others have no
// OPT record. A third query goes over TCP.
func (q *query) shape(hedge bool) {
	a := q.a
	q.stream = q.s.TLS || a.pool.cfg.ForceTCP
	on, suspect := q.s.edns.state(a.pool.cfg.Now())
	if on && !a.probe {
		q.size = udpSize
	}
	n := a.asked(q.s)
	switch {
	case q.stream || n == 0:
	case !on:
		q.stream = !hedge
	case n == 1 && !suspect && (hedge || a.do || len(a.options) > 0):
		q.size = smallSize
	case a.askedPlain(q.s):
		q.stream = true
	default:
		q.size = 0
	}
}

// pack appends q as a message with its length in front, RFC 1035 section 4.2.2. Over
// TCP or TLS, the OPT record requests how long the server keeps an idle connection
// (RFC 7828).
func (q *query) pack(b []byte) []byte {
	at := len(b)
	edns := q.size > 0
	var rd, ra, do, additional byte // RD; AD and CD are in the byte of RA
	if q.rd {
		rd = 0x01
	}
	if q.cd {
		ra |= 0x10
	}
	if q.ad {
		ra |= 0x20
	}
	if q.do {
		do = 0x80
	}
	if edns {
		additional = 1
	}
	b = append(b, 0, 0, byte(q.id>>8), byte(q.id), rd, ra, 0, 1, 0, 0, 0, 0, 0, additional)
	b = append(b, q.name...)
	b = binary.BigEndian.AppendUint16(b, q.Qtype)
	b = binary.BigEndian.AppendUint16(b, q.Qclass)
	if edns {
		b = append(b, 0, 0, byte(dns.TypeOPT), byte(q.size>>8), byte(q.size), 0, 0, do, 0)
		options := q.options
		if q.stream {
			options = appendOption(slices.Clip(options), dns.EDNS0TCPKEEPALIVE, nil)
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(options)))
		b = append(b, options...)
	}
	binary.BigEndian.PutUint16(b[at:], uint16(len(b)-at-2))
	return b
}

// tryList holds the queries of one exchange, and the servers that may get another.
// The attempt's lock guards it.
type tryList struct {
	alive, dead []*server // not queried yet, in this order
	silent      []*server // queried without a reply; may be queried again
	tries       [maxTries]*query
	tried       int  // number of tries in use
	responded   bool // a server replied, though without an answer
}

// pick chooses the next server. It chooses a dead one, or one that has not replied,
// only if no server has replied.
func (l *tryList) pick() *server {
	queues := []*[]*server{&l.alive, &l.dead, &l.silent}
	if l.responded {
		queues = queues[:1]
	}
	for _, queue := range queues {
		for len(*queue) > 0 {
			s := (*queue)[0]
			*queue = (*queue)[1:]
			if l.asked(s) < triesOfOne {
				return s
			}
		}
	}
	return nil
}

// asked returns the number of queries sent to s.
func (l *tryList) asked(s *server) (n int) {
	for _, q := range l.tries[:l.tried] {
		if q.s == s {
			n++
		}
	}
	return n
}

// anyPending reports whether a reply can still come, however late.
func (l *tryList) anyPending() bool {
	for _, q := range l.tries[:l.tried] {
		if q.via != nil {
			return true
		}
	}
	return false
}

// inFlight reports whether a reply may come in time.
func (l *tryList) inFlight() bool {
	for _, q := range l.tries[:l.tried] {
		if !q.hasResult {
			return true
		}
	}
	return false
}

// leastAsked returns the server with the fewest queries among those that have not
// replied; s if there is no other.
func (l *tryList) leastAsked(s *server) *server {
	for _, q := range l.tries[:l.tried] {
		silent := !q.hasResult || isTimeout(q.err)
		if silent && l.asked(q.s) < l.asked(s) {
			s = q.s
		}
	}
	return s
}

// askedPlain reports whether s got a query without an OPT record.
func (l *tryList) askedPlain(s *server) bool {
	for _, q := range l.tries[:l.tried] {
		if q.s == s && q.size == 0 {
			return true
		}
	}
	return false
}

// idSet holds the queries that wait for a reply on one port or connection, by ID.
type idSet map[uint16]*query

// maxIDs keeps random free IDs easy to find, and hard to guess.
const maxIDs = 1 << 15

var errNoIDs = errors.New("too many queries wait for a reply")

// add gives q an unpredictable ID that no other query of the set has.
func (w idSet) add(q *query) error {
	if len(w) >= maxIDs {
		return errNoIDs
	}
	var id [2]byte
	for {
		_, _ = rand.Read(id[:]) // never fails
		q.id = binary.BigEndian.Uint16(id[:])
		if w[q.id] == nil {
			w[q.id] = q
			return nil
		}
	}
}

// isOurs reports whether err is a resource shortage in this process or on this
// host. It says nothing about the server.
func isOurs(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN, errNoIDs} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

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

// restore puts the original question into the reply m: an upstream may change the case
// of the name. It removes the OPT record, which is hop-by-hop (RFC 6891 section 6.1),
// and returns the Extended DNS Errors it held.
func (q *question) restore(m *dns.Msg) (edes []dns.EDNS0_EDE) {
	m.Question = []dns.Question{q.Question}
	for _, rr := range m.Answer {
		if h := rr.Header(); h.Name != q.Name && strings.EqualFold(h.Name, q.Name) {
			h.Name = q.Name
		}
	}
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

// replyKind says what a reply is to the question.
type replyKind uint8

const (
	replyAnswers replyKind = iota // the rcode is about the name
	replyLame                     // the referral of a server that does not serve the name
	replyFails                    // the rcode is about the server
	replyDenies                   // the same, and it may reject the OPT record of the query
)

// kindOf returns the kind of m. A lame referral has no answer, no SOA and no recursion.
// A server that sends an OPT record itself does not reject that of the query (RFC 6891
// section 7), except for its version.
func kindOf(m *dns.Msg) replyKind {
	switch {
	case m.Rcode == dns.RcodeNameError, m.Rcode == dns.RcodeYXDomain:
		return replyAnswers
	case m.Rcode == dns.RcodeBadVers,
		(m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) && m.IsEdns0() == nil:
		return replyDenies
	case m.Rcode != dns.RcodeSuccess:
		return replyFails
	case m.Authoritative, m.RecursionAvailable, m.Truncated, len(m.Answer) > 0:
		return replyAnswers
	}
	kind := replyAnswers
	for _, rr := range m.Ns {
		switch rr.Header().Rrtype {
		case dns.TypeSOA:
			return replyAnswers
		case dns.TypeNS:
			kind = replyLame
		}
	}
	return kind
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
	switch {
	case len(reply) < 12:
		return nil, tooShort
	case reply[2]&0x80 == 0:
		return nil, notResponse
	case binary.BigEndian.Uint16(reply) != q.id:
		return nil, wrongID
	case reply[2]&0x78 != 0:
		return nil, wrongOpcode
	case (binary.BigEndian.Uint16(reply[4:]) != 1 || !q.asks(reply[12:])) && !isBareError(reply):
		return nil, wrongQuestion
	}
	m, cut := new(dns.Msg), reply[2]&0x02 != 0
	switch err := m.Unpack(reply); {
	case err == nil && isWhole(reply, m, cut):
		return m, accepted
	case cut:
		return q.truncated(reply), accepted
	}
	return nil, undecodable
}

// isWhole reports whether m has the records that its header counts, unless it was cut,
// and no OPT record in a wrong section.
func isWhole(reply []byte, m *dns.Msg, cut bool) bool {
	for _, section := range [...][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				return false
			}
		}
	}
	return cut || int(binary.BigEndian.Uint16(reply[6:])) == len(m.Answer) && int(binary.BigEndian.Uint16(reply[8:])) == len(m.Ns)
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
