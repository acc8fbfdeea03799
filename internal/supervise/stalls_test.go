package supervise

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// The first stalls of a worker are logged with their ends, then one a minute, with the
// number of the others.
func TestStallLog(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	var l stallLog
	now := time.Now()
	stall := func(w *worker, after time.Duration) {
		now = now.Add(after)
		l.begin(log, w, now)
		l.over(log, w)
	}
	want := func(when string, stalls int) {
		t.Helper()
		begins, ends := strings.Count(text.String(), "no heartbeat"), strings.Count(text.String(), "heartbeats again")
		if begins != stalls || ends != stalls {
			t.Errorf("%s: %d stalls and %d ends are logged, want %d", when, begins, ends, stalls)
		}
		text.Reset()
	}
	first := &worker{pid: 1}
	for range stallBurst {
		stall(first, disconnectInterval)
	}
	want("at first", stallBurst)
	for range 10 {
		stall(first, disconnectInterval)
	}
	want("repeated", 0)
	for range int(stallInterval/disconnectInterval) - 11 {
		stall(first, disconnectInterval)
	}
	want("for less than a minute", 0)
	stall(first, disconnectInterval)
	if !strings.Contains(text.String(), "unlogged=29") {
		t.Errorf("after a minute: %s", text.String())
	}
	want("after a minute", 1)
	stall(first, disconnectInterval)
	want("then", 0)
	stall(&worker{pid: 2}, disconnectInterval)
	want("a new worker", 1)
	for range stallBurst {
		stall(first, stallInterval)
	}
	want("rare ones", stallBurst)
}
