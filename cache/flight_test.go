package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var key = []byte("key")

type result struct {
	value  int
	shared bool
	err    error
}

// start lets n callers wait for key under ctx and returns when all of them do.
// It must run in a synctest bubble.
func start(f *Flight[int], ctx context.Context, n int, fn func(context.Context) (int, error)) <-chan result {
	results := make(chan result, n)
	for range n {
		go func() {
			v, shared, err := f.Do(ctx, key, fn)
			results <- result{v, shared, err}
		}()
	}
	synctest.Wait()
	return results
}

// counted returns work that counts its calls, and returns 42 when released.
func counted() (fn func(context.Context) (int, error), calls *atomic.Int32, release chan struct{}) {
	calls, release = new(atomic.Int32), make(chan struct{})
	return func(ctx context.Context) (int, error) {
		calls.Add(1)
		select {
		case <-release:
			return 42, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}, calls, release
}

func TestFlightCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 10_000
		f := NewFlight[int](t.Context(), time.Minute)
		fn, calls, release := counted()
		results := start(f, t.Context(), waiters, fn)
		close(release)
		first := 0
		for range waiters {
			r := <-results
			if r.value != 42 || r.err != nil {
				t.Fatalf("got %+v", r)
			}
			if !r.shared {
				first++
			}
		}
		if calls.Load() != 1 || first != 1 {
			t.Errorf("%d calls, %d of them not shared", calls.Load(), first)
		}
		if _, shared, _ := f.Do(t.Context(), key, fn); shared || calls.Load() != 2 {
			t.Error("a later caller got the old result")
		}
		f.Close()
	})
}

func TestFlightWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const half = 100
		f := NewFlight[int](t.Context(), time.Minute)
		fn, calls, release := counted()
		cause := errors.New("client gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		leaving := start(f, ctx, half, fn) // one of them started the work
		staying := start(f, t.Context(), half, fn)
		cancel(cause)
		for range half {
			if r := <-leaving; r.err != cause {
				t.Fatalf("leaving: %+v", r)
			}
		}
		synctest.Wait()
		close(release)
		for range half {
			if r := <-staying; r.value != 42 || r.err != nil || !r.shared {
				t.Fatalf("staying: %+v", r)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
		if _, _, err := f.Do(ctx, key, fn); err != cause {
			t.Errorf("a caller who has left: %v", err)
		}
		synctest.Wait()
		if calls.Load() != 1 {
			t.Error("a caller who has left started work")
		}
		f.Close()
	})
}

func TestFlightKeysAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFlight[int](t.Context(), time.Minute)
		fn, _, release := counted()
		results := start(f, t.Context(), 1, fn)
		v, shared, err := f.Do(t.Context(), []byte("other"), func(context.Context) (int, error) { return 7, nil })
		if v != 7 || shared || err != nil {
			t.Errorf("got %d, %v, %v", v, shared, err)
		}
		close(release)
		<-results
		f.Close()
	})
}

func TestFlightWorkEndsBadly(t *testing.T) {
	boom := errors.New("boom")
	isPanic := func(err error) bool {
		var p *PanicError
		return errors.As(err, &p) && p.Value == "boom" && len(p.Stack) > 0
	}
	tests := []struct {
		name string
		end  func(context.Context) (int, error)
		ok   func(error) bool
	}{
		{"error", func(context.Context) (int, error) { return 0, boom }, func(err error) bool { return err == boom }},
		{"panic", func(context.Context) (int, error) { panic("boom") }, isPanic},
		{"goexit", func(context.Context) (int, error) { runtime.Goexit(); return 0, nil }, func(err error) bool { return err == errExited }},
		{"deadline", func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
			func(err error) bool { return err == context.DeadlineExceeded }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := NewFlight[int](t.Context(), time.Minute)
				ready := make(chan struct{})
				results := start(f, t.Context(), 10, func(ctx context.Context) (int, error) {
					<-ready
					return tt.end(ctx)
				})
				close(ready)
				for range 10 {
					if r := <-results; !tt.ok(r.err) {
						t.Fatalf("got %+v", r)
					}
				}
				v, _, err := f.Do(t.Context(), key, func(context.Context) (int, error) { return 1, nil })
				if v != 1 || err != nil {
					t.Errorf("next call: %d, %v", v, err)
				}
				f.Close()
			})
		})
	}
}

func TestFlightGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFlight[int](t.Context(), time.Minute)
		fn, calls, release := counted()
		if !f.Go(key, fn) || f.Go(key, fn) {
			t.Error("not started exactly once")
		}
		results := start(f, t.Context(), 1, fn)
		close(release)
		if r := <-results; r.value != 42 || !r.shared {
			t.Errorf("got %+v", r)
		}
		f.Wait()
		if calls.Load() != 1 || f.Go(key, fn) {
			t.Error("started after Wait")
		}
	})
}

func TestFlightClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFlight[int](t.Context(), time.Minute)
		fn, calls, _ := counted()
		results := start(f, t.Context(), 10, fn)
		f.Close()
		for range 10 {
			if r := <-results; r.err != context.Canceled {
				t.Fatalf("got %+v", r)
			}
		}
		if _, _, err := f.Do(t.Context(), key, fn); err != ErrClosed || calls.Load() != 1 {
			t.Errorf("after Close: %v, %d calls", err, calls.Load())
		}
	})
}

// Wait must not cancel what it waits for.
func TestFlightWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFlight[int](t.Context(), time.Minute)
		fn, _, release := counted()
		results := start(f, t.Context(), 1, fn)
		waited := make(chan struct{})
		go func() { f.Wait(); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("Wait returned before the work ended")
		default:
		}
		close(release)
		<-waited
		if r := <-results; r.value != 42 {
			t.Errorf("got %+v", r)
		}
	})
}

// For the race detector: work starts and lands all the time while Close comes.
func TestFlightConcurrentUse(t *testing.T) {
	f := NewFlight[int](t.Context(), time.Minute)
	var wg sync.WaitGroup
	closing := make(chan struct{})
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if g == 0 && i == 250 {
					close(closing)
				}
				k := []byte(fmt.Sprint(i % 3))
				v, _, err := f.Do(t.Context(), k, func(context.Context) (int, error) { return int(k[0]), nil })
				if err == nil && v != int(k[0]) {
					t.Errorf("key %s got %d", k, v)
				} else if err != nil && err != ErrClosed {
					t.Error(err)
				}
			}
		})
	}
	<-closing
	f.Close()
	wg.Wait()
	if len(f.calls) != 0 {
		t.Errorf("%d calls left", len(f.calls))
	}
}

func TestFlightLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFlight[int](t.Context(), time.Minute)
		fn, calls, release := counted()
		type led struct {
			value int
			led   bool
			err   error
		}
		leader := make(chan led, 1)
		go func() {
			v, l, err := f.Lead(key, fn)
			leader <- led{v, l, err}
		}()
		synctest.Wait()
		if _, l, _ := f.Lead(key, fn); l {
			t.Error("two lead")
		}
		results := start(f, t.Context(), 100, fn)
		close(release)
		for range 100 {
			if r := <-results; r.value != 42 || !r.shared {
				t.Errorf("a follower got %+v", r)
			}
		}
		if l := <-leader; l != (led{42, true, nil}) || calls.Load() != 1 {
			t.Errorf("the leader got %+v, %d calls", l, calls.Load())
		}
		v, l, err := f.Lead([]byte("other"), func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if v != 0 || !l || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beyond the limit: %d, %v, %v", v, l, err)
		}
		var p *PanicError
		if _, _, err := f.Lead(key, func(context.Context) (int, error) { panic("boom") }); !errors.As(err, &p) {
			t.Errorf("panic: %v", err)
		}
		f.Close()
		if _, l, _ := f.Lead(key, fn); l {
			t.Error("a closed flight starts")
		}
	})
}
