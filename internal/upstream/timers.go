package upstream

import (
	"sync"
	"time"
)

// timers calls due for each of its timers at the time of the timer. It calls them
// one after the other on one goroutine, which exists only while timers are due.
type timers struct {
	mu      sync.Mutex
	heap    []*timer    // binary heap, the earliest first
	clock   *time.Timer // starts run; nil: not needed yet
	armed   time.Time   // when clock starts run; zero: not set
	running bool        // run sets clock when it ends
}

// timer is the one entry of its owner in timers.
type timer struct {
	due   func() // called without locks; may set the timer again
	at    time.Time
	place int // in the heap, from 1; 0: not set
}

// set makes t due at at, in place of any earlier setting. The zero time removes t; a
// call of its due may still follow.
func (ts *timers) set(t *timer, at time.Time) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.move(t, at)
	if ts.running || len(ts.heap) == 0 {
		return
	}
	switch next := ts.heap[0].at; {
	case ts.clock == nil:
		ts.armed, ts.clock = next, time.AfterFunc(time.Until(next), ts.run)
	case ts.armed.IsZero() || next.Before(ts.armed): // a clock that is early is not set again
		ts.armed = next
		ts.clock.Reset(time.Until(next))
	}
}

// move is set without setting the clock; ts.mu is held.
func (ts *timers) move(t *timer, at time.Time) {
	switch i, n := t.place, len(ts.heap); {
	case i != 0 && t.at.Equal(at), i == 0 && at.IsZero():
	case i == 0:
		t.at = at
		ts.heap = append(ts.heap, t)
		ts.sift(n + 1)
	case !at.IsZero():
		t.at = at
		ts.sift(i)
	default:
		last := ts.heap[n-1]
		ts.heap[n-1] = nil
		ts.heap = ts.heap[:n-1]
		if t.place = 0; last != t {
			ts.heap[i-1] = last
			ts.sift(i)
		}
	}
}

// sift moves the timer at place i up or down to its position in the heap; ts.mu is
// held.
func (ts *timers) sift(i int) {
	h, t := ts.heap, ts.heap[i-1]
	for ; i > 1 && t.at.Before(h[i/2-1].at); i /= 2 {
		h[i-1] = h[i/2-1]
		h[i-1].place = i
	}
	for 2*i <= len(h) {
		child := 2 * i
		if child < len(h) && h[child].at.Before(h[child-1].at) {
			child++
		}
		if !h[child-1].at.Before(t.at) {
			break
		}
		h[i-1] = h[child-1]
		h[i-1].place = i
		i = child
	}
	h[i-1], t.place = t, i
}

func (ts *timers) run() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.armed = time.Time{}
	if ts.running {
		return
	}
	ts.running = true
	for len(ts.heap) > 0 && !ts.heap[0].at.After(time.Now()) {
		t := ts.heap[0]
		ts.move(t, time.Time{})
		ts.mu.Unlock()
		t.due()
		ts.mu.Lock()
	}
	ts.running = false
	if len(ts.heap) > 0 {
		ts.armed = ts.heap[0].at
		ts.clock.Reset(time.Until(ts.armed))
	}
}
