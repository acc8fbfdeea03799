package upstream

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
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

	port *port // one of port and conn is set while the query waits for a reply
	conn *stream

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
	b = append(b, 0, 0, byte(q.id>>8), byte(q.id), flag(q.rd, 0x01), flag(q.cd, 0x10)|flag(q.ad, 0x20), 0, 1, 0, 0, 0, 0, 0, flag(edns, 1))
	b = append(b, q.name...)
	b = binary.BigEndian.AppendUint16(b, q.Qtype)
	b = binary.BigEndian.AppendUint16(b, q.Qclass)
	if edns {
		b = append(b, 0, 0, byte(dns.TypeOPT), byte(q.size>>8), byte(q.size), 0, 0, flag(q.do, 0x80), 0)
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

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
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
		if q.pending() {
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

// send sends q over its transport and registers it for the reply. fresh requests a
// new connection.
func (q *query) send(now time.Time, fresh bool) error {
	q.sent = now
	if q.stream {
		return q.s.conns.send(q, now, fresh)
	}
	return q.s.ports.send(q, now)
}

// release ends the wait for q's reply. A port or connection that did not bring
// a reply takes no new query.
func (q *query) release(answered bool) {
	if q.port != nil {
		q.s.ports.release(q, answered)
	}
	if q.conn != nil {
		q.s.conns.release(q, answered)
	}
}

// pending reports whether a reply to q can still come; q.a.mu is held.
func (q *query) pending() bool { return q.port != nil || q.conn != nil }

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
