package server

import (
	"context"
	"errors"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// exchange is one question to the sources of a zone. It does not point into the
// Query that it was made of.
type exchange struct {
	srv     *resolver
	zone    *boundZone
	key     []byte // of the cache
	private bool   // the answer must not be stored
	m       *dns.Msg
	client  netip.AddrPort
	tcp     bool
	depth   int // number of CNAMEs followed so far

	inflight string // Query.inflightKey, set by join
	check    bool   // look into the cache first, see inflight.join
}

// sourced is the reply of a source.
type sourced struct {
	*dns.Msg
	plugin  int  // index into pluginLabels
	private bool // valid for this client or this moment only; must not be stored
	note    ede
}

// newExchange makes the question of q to the zone's sources: the name in lower
// case, RD, CD, DO and AD, and the options of q.extra. Nothing else of the
// client's query goes upstream.
func (s *resolver) newExchange(q *Query) *exchange {
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
	return &exchange{
		srv: s, zone: q.zone, key: append([]byte(nil), q.key...), private: q.private, m: m, client: q.client, tcp: q.tcp,
	}
}

// ask asks the zone's sources in order until one takes the question.
func (x *exchange) ask(ctx context.Context) (r sourced, err error) {
	for i, src := range x.zone.Sources {
		if src.Client != nil {
			r, err = x.askClientSource(ctx, src.Client)
		} else {
			r.Msg, err = src.Exchange(ctx, x.m)
		}
		if errors.Is(err, upstream.ErrNotMine) {
			continue
		}
		r.plugin = x.zone.plugins[i]
		return r, err
	}
	return sourced{}, errNoSource
}

// askClientSource asks a source that may look at the client.
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

// store keeps the reply of the sources, or their failure, unless it is
// private. It returns the answer for the clients. An exchange that was refused
// for lack of resources in this process, or because every upstream is down, says
// nothing about the name, so that failure is not kept.
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
