package fastpath

import (
	"testing"
	"time"
)

func TestRetries(t *testing.T) {
	r, now := make(retries), time.Now()
	if !r.due(1, now) {
		t.Error("the first attempt is not due")
	}
	for _, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		r.add(1, now)
		if r.due(1, now.Add(pause-1)) || !r.due(1, now.Add(pause)) {
			t.Errorf("the next attempt is not due after %v", pause)
		}
		now = now.Add(pause)
	}
	for range 100 {
		r.add(1, now)
	}
	if !r.due(1, now.Add(maxRetryPause)) {
		t.Error("the pause has no bound")
	}
	r.add(2, now)
	if r.keep(map[int]bool{2: true}); len(r) != 1 || !r.due(1, now) {
		t.Error("an interface that is gone is not forgotten")
	}
}
