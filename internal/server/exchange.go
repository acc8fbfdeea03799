package server

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// exchange is one question to the sources of a zone. It has no pointer into the
// Query that it was made from.
type exchange struct {
	srv     *resolver
	zone    *boundZone
	key     []byte // of the cache
	private bool   // the answer must not be stored
	m       *dns.Msg
	client  netip.AddrPort
	tcp     bool
	depth   int // number of CNAMEs followed so far

	// Set by inflight.join.
	inflight string // Query.inflightKey
	check    bool   // look into the cache first

	// Guarded by inflight.mu.
	waiting []waiter
	charged bool   // it has its own slot in misses
	cancel  func() // nil: it cannot be cancelled
}

// add adds w to the waiters, unless it is nil.
func (x *exchange) add(w waiter) {
	if w != nil {
		x.waiting = append(x.waiting, w)
	}
}

// drop removes w from the waiters. It returns false if w does not wait.
func (x *exchange) drop(w waiter) bool {
	i := slices.Index(x.waiting, w)
	if i < 0 {
		return false
	}
	x.waiting = slices.Delete(x.waiting, i, i+1)
	return true
}

// sourced is the reply of a source.
type sourced struct {
	*dns.Msg
	plugin  int  // index into pluginLabels
	private bool // valid for this client or this moment only; must not be stored
	note    ede
}

// fill makes x the question of q to the zone's sources: the name in lower case,
// RD, CD, DO and AD, and the options of q.extra. Nothing else of the client's
// query goes upstream.
func (x *exchange) fill(s *resolver, q *Query) *exchange {
	name, _, err := dns.UnpackDomainName(q.lower, 0)
	if err != nil {
		panic("server: unpack a parsed name: " + err.Error()) // parseQuestion accepts only names that unpack
	}
	m := new(dns.Msg)
	m.Question = []dns.Question{{Name: name, Qtype: q.qtype, Qclass: q.qclass}}
	m.RecursionDesired = true
	m.CheckingDisabled, m.AuthenticatedData = q.cd(), q.ad
	if q.do || len(q.extra) > 0 {
		m.SetEdns0(maxUDPSize, q.do)
		m.IsEdns0().Option = q.extra
	}
	x.srv, x.zone, x.key, x.private = s, q.zone, bytes.Clone(q.key), q.private
	x.m, x.client, x.tcp = m, q.client, q.tcp
	return x
}

// run does steps 2 to 5, see job.begin: it gets the answer to x and delivers it to
// all waiters. It blocks only if the zone's sources do.
func (x *exchange) run() {
	x.guard(func() {
		if x.check {
			if a := x.recheck(); a.entry != nil || a.err != nil {
				x.deliver(a)
				return
			}
		}
		x.start(0, time.Now().Add(x.srv.timeout))
	})
}

// start queries the zone's sources from the i-th on. It completes x now, or when the
// source that takes the question calls back.
func (x *exchange) start(i int, end time.Time) {
	for ; i < len(x.zone.Sources); i++ {
		if src, ok := x.zone.Sources[i].Source.(Starter); ok {
			cancel := src.Start(x.m, end, func(m *dns.Msg, err error) { x.replied(i, end, m, err) })
			x.srv.inflight.started(x, cancel)
			return
		}
		ctx := &deadlineContext{Context: x.srv.ctx, deadline: end}
		r, err := x.askSource(ctx, i)
		ctx.end()
		if !errors.Is(err, upstream.ErrNotMine) {
			x.deliver(x.store(r, err))
			return
		}
	}
	x.deliver(x.store(sourced{}, errNoSource))
}

// replied handles the reply of the i-th source, a Starter.
func (x *exchange) replied(i int, end time.Time, m *dns.Msg, err error) {
	x.guard(func() {
		if errors.Is(err, upstream.ErrNotMine) {
			x.start(i+1, end)
			return
		}
		x.deliver(x.store(sourced{Msg: m, plugin: x.zone.plugins[i]}, err))
	})
}

// deliver ends x with its answer.
func (x *exchange) deliver(a answer) {
	waiting, charged := x.srv.inflight.end(x, x.srv.clock())
	if charged {
		x.srv.misses.release(x.zone, x.client.Addr())
	}
	for _, w := range waiting {
		w.deliver(a)
	}
}

// guard calls f. If f does not return, x ends with SERVFAIL.
func (x *exchange) guard(f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			x.srv.reportPanic("asking for "+x.m.Question[0].Name, p)
		}
		x.deliver(answer{err: errPanic})
	}()
	f()
	returned = true
}

// recheck looks x up in the cache. The zero answer means a miss.
func (x *exchange) recheck() answer {
	switch hit := x.zone.peek(x.key, x.srv.clock(), nil); hit.State {
	case cache.Fresh:
		return answer{entry: hit.Entry, plugin: pluginCache, age: hit.Age}
	case cache.Failed:
		return answer{err: errFailing}
	}
	return answer{}
}

// ask queries the zone's sources in order until one takes the question. It waits for
// the answer.
func (x *exchange) ask(ctx context.Context) (r sourced, err error) {
	for i := range x.zone.Sources {
		if r, err = x.askSource(ctx, i); !errors.Is(err, upstream.ErrNotMine) {
			return r, err
		}
	}
	return sourced{}, errNoSource
}

// askSource queries the i-th source and waits.
func (x *exchange) askSource(ctx context.Context, i int) (r sourced, err error) {
	src := &x.zone.Sources[i]
	if src.Client != nil {
		r, err = x.askClientSource(ctx, src.Client)
	} else {
		r.Msg, err = src.Exchange(ctx, x.m)
	}
	r.plugin = x.zone.plugins[i]
	return r, err
}

// askClientSource queries a source whose answer may depend on the client.
func (x *exchange) askClientSource(ctx context.Context, c ClientSource) (sourced, error) {
	r, err := c.Answer(&action.Request{Msg: x.m, Client: x.client, TCP: x.tcp, Lookup: func(name string, qtype uint16) *dns.Msg {
		return x.lookupName(ctx, name, qtype)
	}})
	if err == nil && r.Msg == nil {
		err = upstream.ErrNotMine
	}
	out := sourced{Msg: r.Msg, private: r.Private}
	if r.EDE != nil {
		out.note = ede{set: true, code: r.EDE.Code, text: cutText(r.EDE.Text)}
	}
	return out, err
}

// store keeps the reply of the sources, or their failure, unless it is private. It
// returns the answer for the clients. An exchange that was not sent, for lack of
// resources or because every upstream is down, shows nothing about the name. So its
// failure is not kept.
func (x *exchange) store(r sourced, err error) answer {
	z := x.zone
	keep := z.Cache != nil && !x.private
	if err != nil {
		z.Errors.write(z.Name, x.m, err)
		if keep && !errors.Is(err, upstream.ErrOverloaded) && !errors.Is(err, upstream.ErrDown) {
			_, perr := z.Cache.PutFailure(x.key, new(dns.Msg).SetRcode(x.m, dns.RcodeServerFailure))
			err = errors.Join(err, perr)
		}
		return answer{err: err}
	}
	a := answer{plugin: r.plugin, note: r.note}
	if keep && !r.private {
		a.entry, a.err = z.Cache.Put(x.key, r.Msg)
	} else {
		a.entry, a.err = cache.NewEntry(r.Msg)
	}
	return a
}
