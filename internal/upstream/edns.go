package upstream

import (
	"sync"
	"time"
)

// How long a server gets no OPT record.
const (
	noEDNSFor  = 15 * time.Minute // after it rejected one
	dropsFor   = 30 * time.Second // after it, or the path, dropped one; doubles
	dropsAfter = 4 * time.Second  // silence that shows it
)

// edns is what is known about a server and OPT records.
type edns struct {
	mu       sync.Mutex    // times are by the pool's clock
	off      time.Time     // no OPT records until then
	sent     time.Time     // when the last OPT record came from the server
	answered time.Time     // when it last answered a query that had one, by the system's clock
	suspect  bool          // it answered without one, and not yet with one
	watching bool          // a query that had one is watched for a late reply
	hold     time.Duration // for which OPT records were last off after silence
}

// state reports whether a query may have an OPT record, and if so whether one
// without should follow soon.
func (e *edns) state(now time.Time) (on, suspect bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !now.Before(e.off), e.suspect
}

// heard notes a reply to a query that had an OPT record, opt: with one as well.
func (e *edns) heard(now time.Time, opt bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered, e.suspect, e.hold = time.Now(), false, 0
	if opt {
		e.sent = now
	}
}

// rejected notes that the server answered a question without an OPT record and
// not with one. If it has sent OPT records lately, the question caused it: a
// forwarder passes on what a server behind it cannot read, and one name must
// not turn EDNS off for all.
func (e *edns) rejected(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.sent) >= noEDNSFor {
		e.off = now.Add(noEDNSFor)
	}
}

// watch notes that the server answered a question without an OPT record and is
// silent on one with it. It reports whether that query is the one to be watched.
func (e *edns) watch(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching || now.Before(e.off) {
		return false
	}
	e.watching, e.suspect = true, true
	return true
}

// unwatch ends watch. The query was sent at since, by the system's clock. If it
// got no reply for dropsAfter, silent, OPT records are off for a while, unless the
// server has answered another one or has sent OPT records lately.
func (e *edns) unwatch(now, since time.Time, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watching = false
	if !silent || !e.suspect || e.answered.After(since) {
		return
	}
	if now.Sub(e.sent) < noEDNSFor {
		e.suspect = false
		return
	}
	e.hold = min(max(2*e.hold, dropsFor), noEDNSFor)
	e.off = now.Add(e.hold)
}
