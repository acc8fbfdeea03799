package server

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// Actions are what a zone does with queries and replies beyond looking them up.
// A nil pointer or zero value is an action that the zone does not have. A query
// that one of them takes leaves the hit path.
//
// They act in CoreDNS's order: the client's message is bounded (NSID, MaxUDP),
// DNS64 sees what LoadBalance has ordered, which sees what Rewrite has
// restored, and ACL judges the rewritten question, in front of the cache.
type Actions struct {
	NSID        string // what RFC 5001 calls the server's identifier
	MaxUDP      uint16 // octets of a reply over UDP, from 512 on
	DNS64       *DNS64
	LoadBalance *LoadBalance
	Rewrite     *Rewrite
	ACL         *ACL
}

// take reports whether some action may concern q.
func (a *Actions) take(q *Query) bool {
	return a.Rewrite != nil || a.LoadBalance != nil || a.DNS64.wants(q) ||
		a.bounds(q) || a.NSID != "" && q.option(dns.EDNS0NSID) != nil || a.ACL.judge(q) != ACLAllow
}

// bounds reports whether q takes more octets than MaxUDP allows.
func (a *Actions) bounds(q *Query) bool {
	return a.MaxUDP != 0 && !q.tcp && q.opt && q.limit() > int(a.MaxUDP)
}

// act answers a query that an action takes.
func (s *Server) act(j *job) {
	q, a := &j.q, j.q.zone.Actions
	if a.bounds(q) {
		q.udpSize = a.MaxUDP
	}
	if a.NSID != "" && q.option(dns.EDNS0NSID) != nil {
		q.nsid = a.NSID
	}
	r := a.Rewrite.run(q)
	if a.LoadBalance == nil && !a.DNS64.wants(q) && !r.applied {
		s.admit(j)
		return
	}
	m, o := s.translate(j, r)
	if o.dropped {
		s.finish(j, nil, o)
		return
	}
	a.LoadBalance.order(m.Msg)
	reply := appendMessage(j.out[:0], q, m)
	o.rcode = replyRcode(reply)
	s.finish(j, reply, o)
}

// message is a reply that actions are at work on. Its OPT record is taken off.
type message struct {
	*dns.Msg
	note ede
}

// admit answers j's question, unless the zone's ACL is against it.
func (s *Server) admit(j *job) {
	q := &j.q
	v := q.zone.actions().ACL.judge(q)
	if v != ACLAllow {
		q.zone.stats.refused(v)
		reply, o := v.reply(j.out[:0], q)
		s.finish(j, reply, o)
		return
	}
	q.key = cache.AppendKey(q.keyBuf[:0], q.lower, q.qtype, q.qclass, q.do, q.cd(), q.ad)
	if q.private {
		q.key[len(q.key)-1] |= privateKey
	} else if reply, o, ok := s.fromCache(j.out[:0], q); ok {
		s.finish(j, reply, o)
		return
	}
	s.miss(j)
}

// privateKey marks the key of a question whose answer is only for who asks it.
// It stands in the flag byte, where no stored answer has it.
const privateKey = 0x80

// consult is admit for a question of our own, on behalf of j.
func (s *Server) consult(j *job, q *Query) (message, outcome) {
	replies := make(chan innerReply, 1)
	inner := &job{srv: s, lis: j.lis, inner: replies}
	q.copyTo(&inner.q)
	inner.q.inner, inner.q.opt, inner.q.nsid = true, true, ""
	inner.q.flags |= flagAD // the client's own wish is seen to at the end
	s.admit(inner)
	r := <-replies
	if r.dropped {
		return message{}, r.outcome
	}
	m := message{Msg: new(dns.Msg)}
	if err := m.Unpack(r.msg); err != nil {
		return failed(err), outcome{rcode: dns.RcodeServerFailure, lookup: r.lookup}
	}
	m.takeOPT()
	return m, r.outcome
}

// failed is a reply without an answer.
func failed(err error) message {
	m := new(dns.Msg)
	m.Rcode = dns.RcodeServerFailure
	return message{Msg: m, note: failureNote(err)}
}

// takeOPT takes the OPT record off m and notes its Extended DNS Error. The
// rcode keeps its upper bits.
func (m *message) takeOPT() {
	kept := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			kept = append(kept, rr)
			continue
		}
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok && !m.note.set {
				m.note = ede{set: true, code: e.InfoCode, text: e.ExtraText}
			}
		}
	}
	m.Extra = kept
}

// appendMessage appends m as the reply to q: header, question, OPT and size are
// as q asks for, the rest is m's.
func appendMessage(dst []byte, q *Query, m message) []byte {
	if m.Rcode > rcodeMask && !q.opt {
		return appendError(dst, q, dns.RcodeServerFailure, ede{})
	}
	rcode, reserve := m.Rcode, 0
	if q.opt {
		reserve = q.optLen(m.note)
	}
	m.Rcode &= rcodeMask // the rest is in OPT
	m.Question = []dns.Question{{Name: q.presentation(), Qtype: q.qtype, Qclass: q.qclass}}
	m.Compress = true
	m.Truncate(q.limit() - reserve)
	start := len(dst)
	packed, err := m.Pack()
	if err != nil {
		return appendError(dst, q, dns.RcodeServerFailure, ede{})
	}
	dst = append(dst, packed...)
	header := dst[start:]
	binary.BigEndian.PutUint16(header, q.id)
	binary.BigEndian.PutUint16(header[2:], replyFlags(binary.BigEndian.Uint16(header[2:]), q, false))
	if q.opt {
		dst = appendOPT(dst, start, q, rcode, m.note)
	}
	return dst
}
