package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlineContext compares a deadlineContext with context.WithTimeout, with
// Done called at once and at the end.
func TestDeadlineContext(t *testing.T) {
	ends := map[string]func(parent, end func()){
		"deadline":  func(_, _ func()) { time.Sleep(time.Minute) },
		"end":       func(_, end func()) { end() },
		"parent":    func(parent, _ func()) { parent() },
		"both":      func(parent, end func()) { parent(); end() },
		"end, late": func(_, end func()) { time.Sleep(time.Hour); end() },
	}
	for name, finish := range ends {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancelParent := context.WithCancel(t.Context())
				l := &deadlineContext{Context: parent, deadline: time.Now().Add(time.Minute)}
				want, cancel := context.WithTimeout(parent, time.Minute)
				if early {
					l.Done()
				}
				if l.Err() != nil {
					t.Fatalf("%s: ended at once: %v", name, l.Err())
				}
				d, _ := want.Deadline()
				if got, ok := l.Deadline(); !ok || got != d {
					t.Errorf("%s: deadline %v, want %v", name, got, d)
				}
				finish(cancelParent, func() { cancel(); l.end() })
				synctest.Wait()
				if l.Err() != want.Err() {
					t.Errorf("%s, early %v: %v, want %v", name, early, l.Err(), want.Err())
				}
				<-l.Done()
				cancelParent()
				l.end()
			})
		}
	}
}
