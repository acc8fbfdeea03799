package supervise

import "time"

// How long to wait before a worker is started again: not long, since who asks the
// node's address has nobody else.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 2 * time.Second
	// steady is how long a worker must have run for its death to count as the
	// first one.
	steady = 10 * time.Second
)

// pauses are the waits between deaths: none after the first, then longer and
// longer.
type pauses struct{ next time.Duration }

// after returns the pause after a worker that ran for so long.
func (p *pauses) after(ran time.Duration) time.Duration {
	if ran >= steady {
		p.next = 0
	}
	pause := p.next
	p.next = min(max(2*pause, firstPause), longPause)
	return pause
}
