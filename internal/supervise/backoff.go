package supervise

import "time"

// Delays before a restart. They are short: clients of the node's address have no
// other server.
const (
	minDelay = 100 * time.Millisecond
	maxDelay = 2 * time.Second
	// stable is how long a worker must have run for its death to count as the
	// first one.
	stable = 10 * time.Second
)

// backoff is the delay before the next restart: none after the first death, then
// longer and longer.
type backoff struct{ next time.Duration }

// after returns the delay after a worker that ran for that long.
func (b *backoff) after(ran time.Duration) time.Duration {
	if ran >= stable {
		b.next = 0
	}
	delay := b.next
	b.next = min(max(2*delay, minDelay), maxDelay)
	return delay
}
