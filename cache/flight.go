package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// ErrClosed is what a Flight returns once it was closed.
var ErrClosed = errors.New("flight is closed")

// PanicError is what waiters get when the work they share panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("shared work panicked: %v", e.Value) }

// errExited is what waiters get when the work ended its goroutine.
var errExited = errors.New("shared work called runtime.Goexit")

// Flight runs one piece of work per key at a time; whoever asks for the same
// key meanwhile waits for its result. It is safe for concurrent use and owns
// the goroutines the work runs on.
type Flight[T any] struct {
	ctx     context.Context
	cancel  context.CancelFunc
	timeout time.Duration
	wg      sync.WaitGroup

	mu     sync.Mutex
	calls  map[string]*call[T]
	closed bool
}

// call is work under way. value and err are set before done is closed.
type call[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// NewFlight makes a Flight whose work runs under ctx, each for at most timeout.
func NewFlight[T any](ctx context.Context, timeout time.Duration) *Flight[T] {
	ctx, cancel := context.WithCancel(ctx)
	return &Flight[T]{ctx: ctx, cancel: cancel, timeout: timeout, calls: make(map[string]*call[T])}
}

// Do returns the result of the work under way for key, or starts fn. It returns
// early with the cause of ctx when ctx ends; the work goes on for the others.
// shared reports that the work had been started by somebody else. fn gets the
// context of the Flight, not of any caller, and should look into the cache
// first: another flight of the key may have landed since its caller missed.
func (f *Flight[T]) Do(ctx context.Context, key []byte, fn func(context.Context) (T, error)) (value T, shared bool, err error) {
	if ctx.Err() != nil {
		return value, false, context.Cause(ctx)
	}
	c, shared := f.join(key, fn)
	if c == nil {
		return value, false, ErrClosed
	}
	select {
	case <-c.done:
		return c.value, shared, c.err
	case <-ctx.Done():
		return value, shared, context.Cause(ctx)
	}
}

// Lead runs fn on the caller's goroutine and returns its result, for others who
// ask for the key meanwhile as well. It reports false, and does nothing, if work
// for key is under way already or the Flight is closed: Do waits for it, or
// tells. Unlike with Do the caller cannot leave early.
func (f *Flight[T]) Lead(key []byte, fn func(context.Context) (T, error)) (value T, led bool, err error) {
	f.mu.Lock()
	if f.closed || f.calls[string(key)] != nil {
		f.mu.Unlock()
		return value, false, nil
	}
	k, c := f.enter(key)
	f.mu.Unlock()
	f.run(k, c, fn)
	return c.value, true, c.err
}

// enter notes work for key; f.mu is held.
func (f *Flight[T]) enter(key []byte) (string, *call[T]) {
	c := &call[T]{done: make(chan struct{}), err: errExited}
	k := string(key)
	f.calls[k] = c
	f.wg.Add(1)
	return k, c
}

// Go starts fn unless work for key is under way, waits for nothing, and reports
// whether it started fn. It is for refreshes; Do joins them.
func (f *Flight[T]) Go(key []byte, fn func(context.Context) (T, error)) bool {
	c, shared := f.join(key, fn)
	return c != nil && !shared
}

// Wait lets nothing start any more and waits for the work under way.
func (f *Flight[T]) Wait() {
	f.refuse()
	f.wg.Wait()
	f.cancel() // releases the context
}

// Close lets nothing start any more, cancels the work under way and waits for
// it.
func (f *Flight[T]) Close() {
	f.refuse()
	f.cancel()
	f.wg.Wait()
}

func (f *Flight[T]) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// join returns the call of key, starting fn if there is none; nil if closed.
func (f *Flight[T]) join(key []byte, fn func(context.Context) (T, error)) (c *call[T], shared bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[string(key)]; c != nil {
		return c, true
	}
	if f.closed {
		return nil, false
	}
	k, c := f.enter(key)
	go f.run(k, c, fn)
	return c, false
}

// run does the work of c and wakes its waiters, also if fn does not return.
func (f *Flight[T]) run(key string, c *call[T], fn func(context.Context) (T, error)) {
	defer f.wg.Done()
	defer f.land(key, c)
	defer func() {
		if v := recover(); v != nil {
			c.err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	ctx := newLimit(f.ctx, f.timeout)
	defer ctx.end()
	c.value, c.err = fn(ctx)
}

func (f *Flight[T]) land(key string, c *call[T]) {
	f.mu.Lock()
	delete(f.calls, key)
	f.mu.Unlock()
	close(c.done)
}
