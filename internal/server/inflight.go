package server

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

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
}

// hasWaiters reports whether something waits for key.
func (f *inflight) hasWaiters(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	return x != nil && len(x.waiting) > 0
}

// joinExisting reports whether an exchange for key is in flight. If so, and w is not
// nil, w waits for its answer.
func (f *inflight) joinExisting(key string, w waiter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	if x == nil {
		return false
	}
	x.add(w)
	return true
}

// join makes w, if not nil, wait for the answer of key. If no exchange for key is in
// flight, it returns a new one, which fill completes before others see it. The
// caller must run it and call end. After close, join returns no exchange: ok is
// false, and w does not wait.
func (f *inflight) join(key string, w waiter, since time.Time, fill func(*exchange)) (x *exchange, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false
	}
	if x := f.byKey[key]; x != nil {
		x.add(w)
		return nil, true
	}
	if f.byKey == nil {
		f.byKey = make(map[string]*exchange)
	}
	// If another exchange ended after w looked into the cache, the answer may be
	// there now.
	x = &exchange{inflight: key, check: !f.ended.Before(since)}
	fill(x)
	x.add(w)
	f.byKey[key] = x
	return x, true
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
	if len(x.waiting) > 0 || x.cancel == nil {
		if !x.charged {
			x.charged = true
			charge(x)
		}
		f.mu.Unlock()
		return true, nil
	}
	delete(f.byKey, key)
	f.mu.Unlock()
	x.cancel()
	return true, x
}

// started stores how to end x. A nil cancel is ignored: the source has passed the
// question on.
func (f *inflight) started(x *exchange, cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cancel != nil {
		x.cancel = cancel
	}
}

// waits reports whether a query of j's client waits for key.
func (f *inflight) waits(key string, j *job) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.byKey[key]
	return x != nil && slices.ContainsFunc(x.waiting, func(w waiter) bool {
		o, ok := w.(*job)
		return ok && o != j && o.sibling == nil && o.q.client.Addr() == j.q.client.Addr()
	})
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
		if x.cancel != nil {
			cancels = append(cancels, x.cancel)
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
