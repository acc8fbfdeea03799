package server

import (
	"context"
	"sync"
	"time"
)

// deadlineContext is context.WithDeadline for an exchange that usually keeps the
// deadline by itself. It starts a timer only when Done is called. The parent has no
// deadline.
type deadlineContext struct {
	context.Context // the parent
	deadline        time.Time

	mu     sync.Mutex
	timed  context.Context // nil until Done is called
	cancel context.CancelFunc
	ended  error // nil until end is called
}

func (d *deadlineContext) Deadline() (time.Time, bool) { return d.deadline, true }

func (d *deadlineContext) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.cancel = context.WithDeadline(d.Context, d.deadline)
		if d.ended != nil {
			d.cancel()
		}
	}
	return d.timed.Done()
}

func (d *deadlineContext) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended != nil:
		return d.ended
	case d.timed != nil:
		return d.timed.Err()
	case d.Context.Err() != nil:
		return d.Context.Err()
	case !time.Now().Before(d.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// end cancels the context, as a context.CancelFunc does.
func (d *deadlineContext) end() {
	err := d.Err()
	if err == nil {
		err = context.Canceled
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = err
	if d.cancel != nil {
		d.cancel()
	}
}
