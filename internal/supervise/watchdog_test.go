package supervise

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// actions returns all actions until kill, and the elapsed time of each.
func actions(w *watchdog) (times []time.Duration, actions []action) {
	for range 1000 {
		a, _ := w.expired()
		if a == wait {
			continue
		}
		times, actions = append(times, w.elapsed), append(actions, a)
		if a == kill {
			return times, actions
		}
	}
	return times, actions
}

func TestWatchdog(t *testing.T) {
	for _, tc := range []struct {
		name     string
		timeouts timeouts
		alive    bool
		times    []time.Duration
		actions  []action
	}{
		{"before the first heartbeat", timeouts{start: 950 * ms, disconnect: 100 * ms, kill: 300 * ms}, false, []time.Duration{950 * ms}, []action{kill}},
		{"both stages", timeouts{start: time.Second, disconnect: 420 * ms, kill: 3 * time.Second}, true, []time.Duration{420 * ms, 3 * time.Second}, []action{disconnect, kill}},
		{"no clients", timeouts{start: time.Second, kill: 250 * ms}, true, []time.Duration{250 * ms}, []action{kill}},
		{"kill before disconnect", timeouts{start: time.Second, disconnect: 420 * ms, kill: 300 * ms}, true, []time.Duration{300 * ms}, []action{kill}},
	} {
		w := &watchdog{timeouts: tc.timeouts}
		w.wait()
		if tc.alive {
			w.heartbeat()
		}
		times, actions := actions(w)
		if !slices.Equal(times, tc.times) || !slices.Equal(actions, tc.actions) {
			t.Errorf("%s: %v at %v, want %v at %v", tc.name, actions, times, tc.actions, tc.times)
		}
	}
}

// Both stages start again after a heartbeat.
func TestWatchdogStartsAgain(t *testing.T) {
	w := &watchdog{timeouts: timeouts{start: time.Second, disconnect: 200 * ms, kill: time.Second}}
	w.wait()
	for range 3 {
		if next := w.heartbeat(); next != 200*ms {
			t.Fatalf("wait after a heartbeat: %v", next)
		}
		if v, next := w.expired(); v != disconnect || next != checkInterval {
			t.Fatalf("after the first wait: action %v, next wait %v", v, next)
		}
		for range 7 {
			if v, _ := w.expired(); v != wait {
				t.Fatalf("at %v: %v", w.elapsed, v)
			}
		}
	}
}

// A postponed disconnect comes with the next wait and does not delay kill.
func TestPostponedDisconnect(t *testing.T) {
	w := &watchdog{timeouts: timeouts{start: time.Second, disconnect: 200 * ms, kill: 450 * ms}}
	w.wait()
	w.heartbeat()
	for _, want := range []action{disconnect, disconnect, disconnect, kill} {
		if got, _ := w.expired(); got != want {
			t.Fatalf("at %v: %v, want %v", w.elapsed, got, want)
		}
		w.postpone()
	}
	if w.elapsed != 450*ms {
		t.Errorf("killed at %v", w.elapsed)
	}
}

func TestBackoff(t *testing.T) {
	var b backoff
	var got []time.Duration
	for range 8 {
		got = append(got, b.after(time.Second))
	}
	want := []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, maxDelay, maxDelay}
	if !slices.Equal(got, want) {
		t.Errorf("delays %v, want %v", got, want)
	}
	if got := b.after(stable); got != 0 {
		t.Errorf("after a stable run: %v", got)
	}
	if got := b.after(0); got != minDelay {
		t.Errorf("after the next death: %v", got)
	}
}
