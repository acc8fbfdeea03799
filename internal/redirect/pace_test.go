package redirect

import (
	"testing"
	"time"
)

// TestPace expects that heartbeats are rare only on a node without queries, and that
// they come before a supervisor kills the process.
func TestPace(t *testing.T) {
	if 2*idleAhead >= 3*time.Second {
		t.Errorf("%v between heartbeats: the supervisor's timeout is 3 s", idleAhead)
	}
	var queries uint64
	p := pace{queries: func() uint64 { return queries }}
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		query bool
		want  time.Duration
	}{
		{0, false, 0},
		{quiet - 1, false, 0},
		{1, false, idleAhead},
		{time.Hour, false, idleAhead},
		{idleAhead, true, 0},
		{quiet - 1, false, 0},
		{0, true, 0},
		{quiet, false, idleAhead},
	} {
		now = now.Add(step.after)
		if step.query {
			queries++
		}
		if got := p.ahead(now); got != step.want {
			t.Fatalf("%+v: %v", step, got)
		}
	}
	if unknown := (pace{}); unknown.ahead(now) != 0 {
		t.Error("heartbeats are rare without knowing the queries")
	}
}
