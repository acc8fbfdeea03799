package fastpath

import (
	"maps"
	"time"
)

// retries are the interfaces to which the program could not be attached, by index.
type retries map[int]retry

type retry struct {
	next  time.Time
	pause time.Duration // before next
}

// maxRetryPause is the longest time between two attempts.
const maxRetryPause = 5 * time.Minute

// add records that an attempt failed. The next one is due after a pause that doubles.
func (r retries) add(i int, now time.Time) {
	pause := min(max(2*r[i].pause, pollInterval), maxRetryPause)
	r[i] = retry{now.Add(pause), pause}
}

// due reports whether an attempt may be made.
func (r retries) due(i int, now time.Time) bool { return !now.Before(r[i].next) }

// keep forgets the interfaces that are not wanted.
func (r retries) keep(wanted map[int]bool) {
	maps.DeleteFunc(r, func(i int, _ retry) bool { return !wanted[i] })
}
