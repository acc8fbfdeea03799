package server

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// inflight coalesces equal questions: while one exchange is under way, all who
// need its answer wait for it. It is safe for concurrent use. The zero value
// has no exchange in flight.
type inflight struct {
	mu      sync.Mutex
	waiting map[string]*[]waiter // by Query.inflightKey
	ended   time.Time            // when the last exchange ended
}

// waiter needs the answer to an in-flight query.
type waiter interface {
	// deliver is called once, without locks held, unless the waiter has left.
	// It may block only if mayBlock is set, since other waiters are next.
	deliver(a answer, mayBlock bool)
}

// join makes w wait for the answer of key. It returns first if no exchange for
// key is in flight: then the caller must run one and call end. It returns raced
// if an exchange has ended since the given time, when w looked into the cache:
// the answer may be there now.
func (f *inflight) join(key string, w waiter, since time.Time) (first, raced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ws := f.waiting[key]; ws != nil {
		*ws = append(*ws, w)
		return false, false
	}
	if f.waiting == nil {
		f.waiting = make(map[string]*[]waiter)
	}
	f.waiting[key] = &[]waiter{w}
	return true, !f.ended.Before(since)
}

// leave makes w wait no more. It returns false if w does not wait for key: its
// answer is being delivered.
func (f *inflight) leave(key string, w waiter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	ws := f.waiting[key]
	if ws == nil {
		return false
	}
	i := slices.Index(*ws, w)
	if i < 0 {
		return false
	}
	*ws = slices.Delete(*ws, i, i+1)
	return true
}

// end ends the exchange of key and returns who waits for its answer.
func (f *inflight) end(key string, now time.Time) []waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	ws := f.waiting[key]
	delete(f.waiting, key)
	if now.After(f.ended) {
		f.ended = now
	}
	return *ws
}

// inflightKey tells apart questions that may have different answers: by zone,
// cache key, options for upstream and, if a source looks at clients, by client.
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
