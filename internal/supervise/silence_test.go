package supervise

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// course is the verdicts of a silence until it is killed, and when they came.
func course(s *silence) (times []time.Duration, verdicts []verdict) {
	for range 1000 {
		v, _ := s.elapsed()
		if v == wait {
			continue
		}
		times, verdicts = append(times, s.counted), append(verdicts, v)
		if v == kill {
			return times, verdicts
		}
	}
	return times, verdicts
}

func TestSilence(t *testing.T) {
	for _, tc := range []struct {
		name     string
		limits   limits
		beats    bool
		times    []time.Duration
		verdicts []verdict
	}{
		{"before the first beat", limits{start: 950 * ms, free: 100 * ms, kill: 300 * ms}, false, []time.Duration{950 * ms}, []verdict{kill}},
		{"both stages", limits{start: time.Second, free: 420 * ms, kill: 3 * time.Second}, true, []time.Duration{420 * ms, 3 * time.Second}, []verdict{free, kill}},
		{"nobody to free", limits{start: time.Second, kill: 250 * ms}, true, []time.Duration{250 * ms}, []verdict{kill}},
		{"killed before", limits{start: time.Second, free: 420 * ms, kill: 300 * ms}, true, []time.Duration{300 * ms}, []verdict{kill}},
	} {
		s := &silence{limits: tc.limits}
		s.wait()
		if tc.beats {
			s.beat()
		}
		times, verdicts := course(s)
		if !slices.Equal(times, tc.times) || !slices.Equal(verdicts, tc.verdicts) {
			t.Errorf("%s: %v at %v, want %v at %v", tc.name, verdicts, times, tc.verdicts, tc.times)
		}
	}
}

// Every silence has its stages.
func TestSilenceAgain(t *testing.T) {
	s := &silence{limits: limits{start: time.Second, free: 200 * ms, kill: time.Second}}
	s.wait()
	for range 3 {
		if next := s.beat(); next != 200*ms {
			t.Fatalf("after a beat it waits %v", next)
		}
		if v, next := s.elapsed(); v != free || next != step {
			t.Fatalf("after the first wait: %v, then %v", v, next)
		}
		for range 7 {
			if v, _ := s.elapsed(); v != wait {
				t.Fatalf("at %v: %v", s.counted, v)
			}
		}
	}
}

// What is postponed comes with the next wait, and is killed in time.
func TestPostponedFree(t *testing.T) {
	s := &silence{limits: limits{start: time.Second, free: 200 * ms, kill: 450 * ms}}
	s.wait()
	s.beat()
	for _, want := range []verdict{free, free, free, kill} {
		if got, _ := s.elapsed(); got != want {
			t.Fatalf("at %v: %v, want %v", s.counted, got, want)
		}
		s.postpone()
	}
	if s.counted != 450*ms {
		t.Errorf("killed at %v", s.counted)
	}
}

func TestPauses(t *testing.T) {
	var p pauses
	var got []time.Duration
	for range 8 {
		got = append(got, p.after(time.Second))
	}
	want := []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, longPause, longPause}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	if got := p.after(steady); got != 0 {
		t.Errorf("after a steady run: %v", got)
	}
	if got := p.after(0); got != firstPause {
		t.Errorf("after the next death: %v", got)
	}
}
