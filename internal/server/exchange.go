package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
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
	kind     slotKind

	bypass bool // ask the sources: no answer from the cache
	probes bool // set by learn: look for a cut when the answer is delivered

	// Guarded by inflight.mu.
	waiting []waiter
	clients map[netip.Addr]int // queries that wait for their own answer; nil: not counted
	charged bool               // it has its own slot in misses

	cancel atomic.Pointer[func()] // nil: it cannot be cancelled
}

// drop removes w from the waiters. It returns false if w does not wait. inflight.mu is
// held.
func (x *exchange) drop(w waiter) bool {
	i, last := *w.place()-1, len(x.waiting)-1
	if i < 0 || i > last || x.waiting[i] != w {
		return false
	}
	x.waiting[i] = x.waiting[last]
	*x.waiting[i].place() = i + 1
	x.waiting[last] = nil
	x.waiting = x.waiting[:last]
	*w.place() = 0
	if x.clients != nil {
		x.count(w, -1)
	}
	return true
}

// count adds n to the number of waiting queries of w's client, which are counted.
func (x *exchange) count(w waiter, n int) {
	if j, ok := w.(*job); ok && j.sibling == nil {
		x.clients[j.q.client.Addr()] += n
	}
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
	m.CheckingDisabled, m.AuthenticatedData = q.cd, q.ad
	if q.do || len(q.extra) > 0 {
		m.SetEdns0(maxUDPSize, q.do)
		m.IsEdns0().Option = q.extra
	}
	x.srv, x.zone, x.key, x.private = s, q.zone, bytes.Clone(q.key), q.private
	x.m, x.client, x.tcp, x.bypass = m, q.client, q.tcp, q.bypass
	return x
}

// run does steps 2 to 5, see job.start: it gets the answer to x and delivers it to
// all waiters. It uses a goroutine if the zone's sources may block.
func (x *exchange) run() {
	begin := func() {
		x.guard(func() {
			if x.check && !x.bypass {
				if a := x.recheck(); a.entry != nil || a.err != nil {
					x.deliver(a)
					return
				}
			}
			x.start(0, time.Now().Add(x.srv.timeout))
		})
	}
	if x.zone.blocking {
		x.srv.workers.do(begin)
		return
	}
	begin()
}

// start queries the zone's sources from the i-th on. It completes x now, or when the
// source that takes the question calls back.
func (x *exchange) start(i int, end time.Time) {
	for ; i < len(x.zone.Sources); i++ {
		if i > 0 && i == x.zone.cutAt && x.fromCut() {
			return
		}
		if src, ok := x.zone.Sources[i].Source.(Starter); ok {
			cancel := src.Start(x.m, end, func(m *dns.Msg, err error) { x.replied(i, end, m, err) })
			if cancel != nil { // else the source has passed the question on
				x.cancel.Store(&cancel)
			}
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
		x.srv.misses.release(x.zone, x.client.Addr(), x.kind)
	}
	for _, w := range waiting {
		w.deliver(a)
	}
	if x.probes {
		x.probe()
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
		if z.Cut != nil && a.err == nil {
			x.learn(a.entry, r)
		}
	} else {
		a.entry, a.err = cache.NewEntry(r.Msg)
	}
	return a
}

// inflight coalesces equal questions: while an exchange is in flight, all waiters
// for its answer are queued on it. It is safe for concurrent use. The zero value has
// no exchange in flight.
type inflight struct {
	mu     sync.Mutex
	byKey  map[string]*exchange // by Query.inflightKey
	ended  time.Time            // when the last exchange ended
	closed bool
}

// waiter needs the answer to an in-flight query.
type waiter interface {
	// deliver is called once, without locks held, unless the waiter has left. It
	// must not block.
	deliver(answer)
	// place is where an exchange keeps the waiter's index, from 1. Its inflight.mu
	// guards it.
	place() *int
}

// hasWaiters reports whether something waits for key.
func (f *inflight) hasWaiters(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	return x != nil && len(x.waiting) > 0
}

// join makes w, if not nil, wait for the answer of key. If no exchange for key is in
// flight, it returns a new one, which fill completes before others see it; the caller
// must run it. If fill fails, or after close, join returns the error and w does not
// wait.
func (f *inflight) join(key string, w waiter, since time.Time, fill func(*exchange) error) (*exchange, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errShutdown
	}
	if f.byKey == nil {
		f.byKey = make(map[string]*exchange)
	}
	x, joined := f.byKey[key]
	if !joined {
		// If another exchange ended after w looked into the cache, the answer may be
		// there now.
		x = &exchange{inflight: key, check: !f.ended.Before(since)}
		if err := fill(x); err != nil {
			return nil, err
		}
		f.byKey[key] = x
	}
	if w != nil {
		x.waiting = append(x.waiting, w)
		*w.place() = len(x.waiting)
		if x.clients != nil {
			x.count(w, 1)
		}
	}
	if joined {
		return nil, nil
	}
	return x, nil
}

// leave removes w from the waiters for key. The exchange continues. leave returns
// false if w does not wait: its answer is being delivered. charge, if not nil, is
// called once for each exchange, unless it has a slot of its own.
func (f *inflight) leave(key string, w waiter, charge func(*exchange)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	if x == nil || !x.drop(w) {
		return false
	}
	if charge != nil && !x.charged {
		x.charged = true
		charge(x)
	}
	return true
}

// abandon is leave for a client that has disconnected. If nothing else waits,
// abandon ends the exchange if it can, and returns it as cancelled.
func (f *inflight) abandon(key string, w waiter, charge func(*exchange)) (left bool, cancelled *exchange) {
	f.mu.Lock()
	x := f.byKey[key]
	if x == nil || !x.drop(w) {
		f.mu.Unlock()
		return false, nil
	}
	cancel := x.cancel.Load()
	if len(x.waiting) > 0 || cancel == nil {
		if !x.charged {
			x.charged = true
			charge(x)
		}
		f.mu.Unlock()
		return true, nil
	}
	delete(f.byKey, key)
	f.mu.Unlock()
	(*cancel)()
	return true, x
}

// waits reports whether a query of client waits for key.
func (f *inflight) waits(key string, client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	if x == nil {
		return false
	}
	if x.clients == nil {
		x.clients = make(map[netip.Addr]int)
		for _, w := range x.waiting {
			x.count(w, 1)
		}
	}
	return x.clients[client] > 0
}

// end ends x. It returns the waiters for its answer, and whether x has a slot; no
// waiters if x was cancelled.
func (f *inflight) end(x *exchange, now time.Time) (waiting []waiter, charged bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[x.inflight] != x {
		return nil, false
	}
	delete(f.byKey, x.inflight)
	if now.After(f.ended) {
		f.ended = now
	}
	return x.waiting, x.charged
}

// close ends all exchanges, also those that join would start later. It returns their
// waiters.
func (f *inflight) close() (waiting []waiter) {
	var cancels []func()
	f.mu.Lock()
	for _, x := range f.byKey {
		waiting = append(waiting, x.waiting...)
		if cancel := x.cancel.Load(); cancel != nil {
			cancels = append(cancels, *cancel)
		}
	}
	f.byKey, f.closed = nil, true
	f.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	return waiting
}

// inflightKey differs for questions that may have different answers: by zone, cache
// key, options for upstream and, if a source's answer depends on the client, by
// client.
func (q *Query) inflightKey() string {
	key := make([]byte, 0, 4+len(q.key)+32)
	key = binary.BigEndian.AppendUint32(key, q.zone.serial)
	key = append(key, q.key...)
	for _, o := range q.extra {
		if local, ok := o.(*dns.EDNS0_LOCAL); ok {
			key = binary.BigEndian.AppendUint16(key, local.Code)
			key = binary.BigEndian.AppendUint16(key, uint16(len(local.Data)))
			key = append(key, local.Data...)
		}
	}
	if q.zone.perClient {
		client, _ := q.client.MarshalBinary() // never fails
		key = append(append(key, client...), byte(boolIndex(q.tcp)))
	}
	return string(key)
}

// misses limits the queries being resolved: clients' queries that wait for an
// answer, and queries to upstreams for which no client waits any more. Each of them
// takes one slot. It is safe for concurrent use.
type misses struct {
	limit     int64
	perClient int // of one client in one zone

	active atomic.Int64
	own    atomic.Int64 // those of active that are forItself
	zones  atomic.Int64 // that have slots
	shards [missShards]missShard
}

const missShards = 16

type missShard struct {
	mu     sync.Mutex
	active map[missOwner]slots // without zeros
	_      [40]byte            // one cache line per shard
}

// missOwner is a client, in one zone: a pod whose lookups of external names fail
// must still resolve cluster names.
type missOwner struct {
	client netip.Addr
	zone   *Zone
}

// slots are the slots of an owner, by kind.
type slots [2]int

// slotKind tells queries of clients from those that no client has sent, such as the
// ones for siblings and refreshes. The latter get at most half of each limit: an
// upstream that drops AAAA keeps siblings in flight for 4 s.
type slotKind int

const (
	forClient slotKind = iota
	forItself
)

// zoneShare limits the slots of one of several zones to this multiple of the free
// slots. One zone alone gets 4/5 of all slots, two get 4/9 each, and some slots
// always stay free for other zones.
const zoneShare = 4

func newMisses(limit, perClient int) *misses {
	m := &misses{limit: int64(limit), perClient: perClient}
	for i := range m.shards {
		m.shards[i].active = make(map[missOwner]slots)
	}
	return m
}

// refusal is the limit because of which a query gets SERVFAIL. It is the text of an
// Extended DNS Error.
type refusal string

const (
	refusedClient refusal = "too many queries of this client are being resolved"
	refusedAll    refusal = "too many queries are being resolved"
	refusedUnread refusal = "too many replies wait until clients read them"
)

func (r refusal) Error() string { return string(r) }

// acquire takes a slot for client in z, or returns the reason why it cannot. Every
// slot must be released with the same kind.
func (m *misses) acquire(z *boundZone, client netip.Addr, kind slotKind) error {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := missOwner{client, z.Zone}
	n := s.active[owner]
	if n[forClient]+n[forItself] >= m.perClient || kind == forItself && n[forItself] >= max(m.perClient/2, 1) {
		return refusedClient
	}
	zone, all := m.count(z, 1)
	own := m.own.Add(int64(kind))
	if all > m.limit || kind == forItself && own > max(m.limit/2, 1) || len(z.table.zones) > 1 && zone > zoneShare*(m.limit-all+1) {
		m.count(z, -1)
		m.own.Add(-int64(kind))
		return refusedAll
	}
	n[kind]++
	s.active[owner] = n
	return nil
}

// busy reports whether z has at least an equal share of the slots in use. Only zones with
// slots count.
func (m *misses) busy(z *boundZone) bool {
	n := z.active.Load()
	return n > 0 && n*m.zones.Load() >= m.active.Load()
}

// count adds n, which is 1 or -1, to the slots of z and of all zones, and returns them.
func (m *misses) count(z *boundZone, n int64) (zone, all int64) {
	zone, all = z.active.Add(n), m.active.Add(n)
	if zone == max(n, 0) { // the first slot was taken, or the last one released
		m.zones.Add(n)
	}
	return zone, all
}

// charge takes a slot for a query to an upstream that continues without its client.
// The slot, of the kind forClient, may exceed the limits; later misses then get no slot
// until enough are released.
func (m *misses) charge(z *boundZone, client netip.Addr) {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.count(z, 1)
	owner := missOwner{client, z.Zone}
	n := s.active[owner]
	n[forClient]++
	s.active[owner] = n
}

// release releases a slot.
func (m *misses) release(z *boundZone, client netip.Addr, kind slotKind) {
	s := m.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.count(z, -1)
	m.own.Add(-int64(kind))
	owner := missOwner{client, z.Zone}
	n := s.active[owner]
	if n[kind]--; n == (slots{}) {
		delete(s.active, owner)
		return
	}
	s.active[owner] = n
}

// shard selects a shard by the last bytes of the address, in which the pods of a
// node differ.
func (m *misses) shard(a netip.Addr) *missShard {
	b := a.As16()
	return &m.shards[(b[15]^b[11])%missShards]
}
