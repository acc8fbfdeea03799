package tick

import (
	"context"
	"testing"
	"time"
)

// timers are a timer of the kernel and its replacement.
func timers(t *testing.T) map[string]*Timer {
	t.Helper()
	kernel, spare := New(), newSpare()
	t.Cleanup(func() {
		for _, timer := range []*Timer{kernel, spare} {
			timer.Stop()
			timer.Stop() // no harm
			for range timer.C {
			}
		}
	})
	if kernel.file == nil {
		t.Fatal("no timer of the kernel")
	}
	return map[string]*Timer{"kernel": kernel, "spare": spare}
}

// TestReset expects one expiry, after the time, and none before or after.
func TestReset(t *testing.T) {
	const wait = 20 * time.Millisecond
	for name, timer := range timers(t) {
		timer.Reset(time.Hour)
		began := time.Now()
		timer.Reset(wait)
		<-timer.C
		if d := time.Since(began); d < wait {
			t.Errorf("%s: expired after %v", name, d)
		}
		select {
		case <-timer.C:
			t.Errorf("%s: expired twice", name)
		case <-time.After(3 * wait):
		}
	}
}

// TestResetForgets expects that an expiry which nobody has received is gone after Reset.
func TestResetForgets(t *testing.T) {
	for name, timer := range timers(t) {
		for range 200 {
			timer.Reset(1)
			timer.Reset(time.Hour)
			select {
			case <-timer.C:
				t.Fatalf("%s: an old expiry", name)
			default:
			}
		}
		timer.Reset(1)
		<-timer.C
		timer.Align(time.Millisecond)
		<-timer.C
		timer.Halt()
		select {
		case <-timer.C:
			t.Errorf("%s: expired after Halt", name)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestAlign expects expiries at multiples of the interval, again and again.
func TestAlign(t *testing.T) {
	const interval = 10 * time.Millisecond
	for name, timer := range timers(t) {
		first := next(interval)
		timer.Align(interval)
		for range 3 {
			<-timer.C
			if at := time.Duration(now()); at < first {
				t.Errorf("%s: expired %v too early", name, first-at)
			}
			first += interval
		}
	}
}

// TestCall: the calls go on until the context is done.
func TestCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	Call(ctx, time.Millisecond, func() {
		if calls++; calls == 3 {
			cancel()
		}
	})
	if calls < 3 {
		t.Errorf("%d calls", calls)
	}
}
