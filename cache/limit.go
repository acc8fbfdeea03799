package cache

import (
	"context"
	"sync"
	"time"
)

// limit is context.WithTimeout for work that mostly keeps its deadline by
// itself: the timer is made when somebody asks for Done.
type limit struct {
	context.Context // the parent
	deadline        time.Time

	mu     sync.Mutex
	timed  context.Context // nil: nobody has asked
	cancel context.CancelFunc
	ended  error // nil: not yet
}

func newLimit(parent context.Context, d time.Duration) *limit {
	return &limit{Context: parent, deadline: time.Now().Add(d)}
}

func (l *limit) Deadline() (time.Time, bool) {
	if d, ok := l.Context.Deadline(); ok && d.Before(l.deadline) {
		return d, true
	}
	return l.deadline, true
}

func (l *limit) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timed == nil {
		l.timed, l.cancel = context.WithDeadline(l.Context, l.deadline)
		if l.ended != nil {
			l.cancel()
		}
	}
	return l.timed.Done()
}

func (l *limit) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err()
}

func (l *limit) err() error {
	switch {
	case l.ended != nil:
		return l.ended
	case l.timed != nil:
		return l.timed.Err()
	case l.Context.Err() != nil:
		return l.Context.Err()
	case !time.Now().Before(l.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// end cancels the context, as context.CancelFunc does.
func (l *limit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel()
	}
	if l.ended = l.err(); l.ended == nil {
		l.ended = context.Canceled
	}
}
