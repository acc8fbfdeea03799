package upstream

import (
	"sync"
	"time"
)

// For how long nodens sends a server no OPT record.
const (
	noEDNSFor  = 15 * time.Minute // after the server rejected one
	dropsFor   = 30 * time.Second // after the server or the path dropped one; doubles
	dropsAfter = 4 * time.Second  // silence that shows such a drop
)

// edns records whether a server supports OPT records.
type edns struct {
	mu       sync.Mutex    // times are by the pool's clock
	off      time.Time     // no OPT records until then
	sent     time.Time     // when the last OPT record came from the server
	answered time.Time     // when it last answered a query that had one, by the system's clock
	suspect  bool          // the server answered without one, and not yet with one
	watching bool          // a query that had one is watched for a late reply
	hold     time.Duration // the last time without OPT records after silence
}

// state reports whether a query may have an OPT record (on), and whether a query
// without one should follow soon (suspect).
func (e *edns) state(now time.Time) (on, suspect bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !now.Before(e.off), e.suspect
}

// replied records a reply to a query that had an OPT record. opt means that the
// reply had one too.
func (e *edns) replied(now time.Time, opt bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered, e.suspect, e.hold = time.Now(), false, 0
	if opt {
		e.sent = now
	}
}

// rejected records that the server answered a question only without an OPT record.
// If the server has sent OPT records lately, the question is the cause: a forwarder
// passes the query to another server that cannot read the record. One such name must
// not turn EDNS off for all.
func (e *edns) rejected(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.sent) >= noEDNSFor {
		e.off = now.Add(noEDNSFor)
	}
}

// watch records that the server answered a question without an OPT record, but not
// with one. It reports whether the caller must watch the query with the record for a
// late reply.
func (e *edns) watch(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching || now.Before(e.off) {
		return false
	}
	e.watching, e.suspect = true, true
	return true
}

// unwatch ends watch. The query was sent at since, by the system's clock. silent
// means that it got no reply for dropsAfter. Then OPT records are off for a while,
// unless the server has answered another query with one or has sent OPT records
// lately.
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
