package main

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"
)

// mix is the share of names that do not exist.
type mix int

const (
	mixA mix = iota // every name has one A record
	mixB            // 70% are NXDOMAIN, as with the search list of ndots:5
	mixC            // the same, below a name that does not exist either
	numMixes
)

func (m mix) String() string { return [...]string{"A", "B", "C"}[m] }

// negative reports whether the i-th name of the mix does not exist.
func (m mix) negative(i int) bool { return m != mixA && i%10 >= 3 }

// The names are these with the index as the digits.
const (
	positiveName = "p0000000.bench.example."
	negativeName = "x0000000." + namespace
	belowName    = "x0000000.com." + namespace
	namespace    = "default.svc.cluster.local."
	digitsAt     = 12 + 2 // in the message: after the header, a length and a letter
	numDigits    = 7
	maxNames     = 10_000_000
)

// questions are the query messages, to be copied.
type questions struct{ positive, negative []byte }

// newQuestions makes the questions of a mix.
func newQuestions(m mix) (*questions, error) {
	pack := func(name string) ([]byte, error) {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		return m.Pack()
	}
	p, err := pack(positiveName)
	if err != nil {
		return nil, err
	}
	if m == mixC {
		n, err := pack(belowName)
		return &questions{p, n}, err
	}
	n, err := pack(negativeName)
	return &questions{p, n}, err
}

// put writes the query for the i-th name to buf and returns its length.
func (q *questions) put(buf []byte, id uint16, i int, negative bool) int {
	from := q.positive
	if negative {
		from = q.negative
	}
	n := copy(buf, from)
	binary.BigEndian.PutUint16(buf, id)
	for d := digitsAt + numDigits - 1; i > 0; d, i = d-1, i/10 {
		buf[d] = '0' + byte(i%10)
	}
	return n
}

// right reports whether reply is the correct one to query: it repeats the
// question, and has one record if the name exists, else none. For an echo only
// the question is checked.
func right(reply, query []byte, negative, echo bool) bool {
	if len(reply) < len(query) || reply[2]&0x80 == 0 || !bytes.Equal(reply[12:len(query)], query[12:]) {
		return false
	}
	if echo {
		return true
	}
	rcode, answers := dns.RcodeSuccess, uint16(1)
	if negative {
		rcode, answers = dns.RcodeNameError, 0
	}
	return int(reply[3]&0x0f) == rcode && binary.BigEndian.Uint16(reply[6:]) == answers
}
