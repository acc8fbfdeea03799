package supervise

import "time"

const (
	// slack is added to Report.Silence: the kernel's clock of the beats is
	// coarse, up to a tick of 10 ms late.
	slack = 20 * time.Millisecond
	// between is the least time between two frees of clients that may have asked
	// a worker again which fell silent again: resolvers try twice, as a rule.
	between = 2 * time.Second
	// step is how finely silence is counted once it lasts.
	step = 100 * time.Millisecond
)

// verdict is what follows from silence.
type verdict int

const (
	wait verdict = iota
	free         // those who wait for an answer: the first stage
	kill         // the second
)

// silence counts how long a worker has not beaten. Every wait is counted as long
// as it was meant to be, however long it took: see the package's comment.
type silence struct {
	limits limits

	beaten  bool // ever
	counted time.Duration
	waiting time.Duration // what the current wait counts
	freed   bool
}

// limits are the times after which something follows.
type limits struct {
	start time.Duration // until the first beat
	free  time.Duration // 0: never
	kill  time.Duration
}

// beat returns how long to wait for the next one.
func (s *silence) beat() time.Duration {
	s.beaten, s.freed, s.counted = true, false, 0
	return s.wait()
}

// elapsed says that the wait is over without a beat, and returns the next wait.
func (s *silence) elapsed() (verdict, time.Duration) {
	s.counted += s.waiting
	switch {
	case s.counted >= s.limit():
		return kill, 0
	case s.beaten && !s.freed && s.limits.free > 0 && s.counted >= s.limits.free:
		s.freed = true
		return free, s.wait()
	}
	return wait, s.wait()
}

// postpone takes a free back: the next wait ends with it again.
func (s *silence) postpone() { s.freed = false }

func (s *silence) limit() time.Duration {
	if !s.beaten {
		return s.limits.start
	}
	return s.limits.kill
}

func (s *silence) wait() time.Duration {
	s.waiting = min(step, s.limit()-s.counted)
	if s.beaten && !s.freed && s.limits.free > s.counted {
		s.waiting = min(s.limits.free, s.limits.kill) - s.counted
	}
	return s.waiting
}
