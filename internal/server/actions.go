package server

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// Actions are what a zone does with queries and replies besides lookups. A nil
// pointer or zero value is an action that the zone does not have. A query that
// an action takes leaves the hit path.
//
// They act in CoreDNS's order. NSID and MaxUDP apply to the client's message. ACL
// judges the rewritten question, before the cache. On the way back, Rewrite restores
// the reply, LoadBalance orders it, and DNS64 translates it.
type Actions struct {
	NSID        string // the server's identifier (RFC 5001)
	MaxUDP      uint16 // bytes of a reply over UDP, at least 512
	DNS64       *action.DNS64
	LoadBalance *action.LoadBalance
	Rewrite     *action.Rewrite
	ACL         *action.ACL
}

// concern reports whether some action may concern q.
func (a *Actions) concern(q *Query) bool {
	return a.Rewrite != nil || a.LoadBalance != nil || a.translates(q) ||
		a.bounds(q) || a.wantsNSID(q) || a.judge(q) != action.ACLAllow
}

// bounds reports whether q accepts more bytes than MaxUDP allows.
func (a *Actions) bounds(q *Query) bool {
	return a.MaxUDP != 0 && !q.tcp && q.opt && q.limit() > int(a.MaxUDP)
}

func (a *Actions) wantsNSID(q *Query) bool {
	return a.NSID != "" && action.Option(q.options, dns.EDNS0NSID) != nil
}

func (a *Actions) translates(q *Query) bool {
	return a.DNS64.Wants(q.qtype, q.qclass, q.cd, q.client.Addr())
}

func (a *Actions) judge(q *Query) action.ACLVerdict {
	return a.ACL.Judge(q.lower, q.qtype, q.client.Addr())
}

// rewrite applies the rewrite rules to q. It returns nil if none applies.
func (a *Actions) rewrite(q *Query) *action.Rewriting {
	if a.Rewrite == nil {
		return nil
	}
	r := a.Rewrite.Run(action.Question{
		Name: strings.ToLower(q.presentation()), Type: q.qtype, Class: q.qclass,
		Client: q.client, Server: q.zone.table.local, TCP: q.tcp, Options: q.options,
	})
	if !r.Applied {
		return nil
	}
	return r
}

// act answers a query that an action takes. It does not block.
func (j *job) act() {
	q, a := &j.q, j.q.zone.Actions
	if a.bounds(q) {
		q.udpSize = a.MaxUDP
	}
	if a.wantsNSID(q) {
		q.nsid = true
	}
	r := a.rewrite(q)
	if a.LoadBalance == nil && !a.translates(q) && r == nil {
		j.admit()
		return
	}
	j.askRewritten(q, r, j.translate)
}

// translate translates m, the answer to j's question, with DNS64 where that applies.
func (j *job) translate(m message, o outcome) {
	q, a := &j.q, j.q.zone.Actions
	if o.dropped || !a.translates(q) || !a.DNS64.Needs(m.Msg) {
		j.send(m, o)
		return
	}
	asked := new(Query)
	q.copyTo(asked)
	asked.qtype = dns.TypeA
	j.askRewritten(asked, a.rewrite(asked), func(v4 message, _ outcome) {
		if v4.Msg == nil || v4.Rcode != dns.RcodeSuccess {
			j.send(m, o)
			return
		}
		q.zone.stats.synthesised()
		a.DNS64.Synthesize(v4.Msg, m.Ns)
		j.send(v4, o)
	})
}

// send orders the records of m and ends j with it.
func (j *job) send(m message, o outcome) {
	if o.dropped {
		j.finish(nil, o)
		return
	}
	j.q.zone.Actions.LoadBalance.Order(m.Msg)
	j.finish(appendMessage(j.buffer(), &j.q, m), o)
}

var errRewritten = errors.New("the rewritten name is no domain name")

// askRewritten looks up the question that r has made of q; nil: q itself. It changes
// the reply to fit q again, and calls done with it.
func (j *job) askRewritten(q *Query, r *action.Rewriting, done func(message, outcome)) {
	if r == nil {
		j.askInner(q, done)
		return
	}
	asked := new(Query)
	if err := q.rewriteTo(asked, r); err != nil {
		done(failed(err), outcome{})
		return
	}
	j.askInner(asked, func(m message, o outcome) {
		if o.dropped || !r.Retargets(m.Msg) {
			j.restore(r, m, o, done)
			return
		}
		j.srv.workers.do(func() { // the lookup blocks
			defer j.recoverPanic()
			j.retarget(r, asked, m)
			j.restore(r, m, o, done)
		})
	})
}

// retarget replaces targets of CNAMEs in m, the answer to asked, and looks the new
// ones up.
func (j *job) retarget(r *action.Rewriting, asked *Query, m message) {
	ctx, cancel := context.WithTimeout(j.srv.ctx, j.srv.timeout)
	defer cancel()
	r.Retarget(m.Msg, func(name string) *dns.Msg {
		return new(exchange).fill(j.srv, asked).lookupName(ctx, name, asked.qtype)
	})
}

// restore makes m fit the question before r, and calls done with it.
func (j *job) restore(r *action.Rewriting, m message, o outcome, done func(message, outcome)) {
	if !o.dropped {
		r.Restore(m.Msg)
	}
	done(m, o)
}

// rewriteTo makes into the question that r has made of q.
func (q *Query) rewriteTo(into *Query, r *action.Rewriting) error {
	q.copyTo(into)
	var buf [dnsname.MaxLen + 1]byte
	n, err := dns.PackDomainName(r.Name, buf[:], 0, nil, false)
	if err != nil || n > dnsname.MaxLen {
		return errRewritten
	}
	into.name = append([]byte(nil), buf[:n]...)
	into.lower = appendLower(make([]byte, 0, n+keyTail), into.name)
	into.qtype, into.qclass = r.Type, r.Class
	into.extra, into.private = r.Options, r.Private
	into.makeKey()
	return nil
}

// message is a reply that actions work on, without its OPT record.
type message struct {
	*dns.Msg
	note ede
}

// admit answers j's question if the zone's ACL allows it.
func (j *job) admit() {
	q := &j.q
	if a := q.zone.Actions; a != nil {
		if v := a.judge(q); v != action.ACLAllow {
			q.zone.stats.refused(v)
			reply, o := appendDenied(j.buffer(), q, v)
			j.finish(reply, o)
			return
		}
	}
	q.makeKey()
	if q.private {
		q.key[len(q.key)-1] |= privateKey
	} else if reply, o, ok := j.srv.fromCache(j.buffer(), q); ok {
		j.finish(reply, o)
		return
	}
	j.miss()
}

// appendDenied appends the reply to a query that the ACL does not allow, RFC
// 8914 §4.16 and §4.18.
func appendDenied(dst []byte, q *Query, v action.ACLVerdict) ([]byte, outcome) {
	o := outcome{plugin: pluginIndex("acl")}
	switch v {
	case action.ACLBlock:
		return appendError(dst, q, dns.RcodeRefused, ede{set: true, code: dns.ExtendedErrorCodeBlocked}), o
	case action.ACLFilter:
		return appendError(dst, q, dns.RcodeSuccess, ede{set: true, code: dns.ExtendedErrorCodeFiltered}), o
	}
	o.dropped = true
	return nil, o
}

// privateKey marks the key of a question whose answer is valid for one client
// only. It is a bit of the flag byte that no stored answer has.
const privateKey = 0x80

// askInner resolves q on behalf of j, as admit does, and calls done with the reply.
func (j *job) askInner(q *Query, done func(message, outcome)) {
	inner := &job{srv: j.srv, lis: j.lis}
	inner.inner = func(reply []byte, o outcome) {
		defer j.recoverPanic()
		m := message{Msg: new(dns.Msg)}
		switch {
		case o.dropped:
			m = message{}
		case m.Unpack(reply) != nil:
			m, o = failed(nil), outcome{lookup: o.lookup}
		default:
			m.takeOPT()
		}
		done(m, o)
	}
	q.copyTo(&inner.q)
	inner.q.inner, inner.q.opt, inner.q.nsid = true, true, false
	inner.q.flags |= flagAD // send clears AD for a client that does not want it
	c := j.conn             // nil: j may be reused once inner has begun
	func() {
		defer inner.recoverPanic()
		inner.admit()
	}()
	if c != nil {
		j.asks.Store(inner)
		if c.ctx.Err() != nil {
			inner.abandon()
		}
	}
}

// failed is a reply without an answer.
func failed(err error) message {
	m := new(dns.Msg)
	m.Rcode = dns.RcodeServerFailure
	return message{Msg: m, note: failureNote(err)}
}

// takeOPT removes the OPT record from m and keeps its Extended DNS Error. The
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

// appendMessage appends m as the reply to q: ID, flags, question, OPT and size are
// as q requires.
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
