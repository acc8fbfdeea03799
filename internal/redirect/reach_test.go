package redirect

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodens-dns/nodens/internal/server"
)

// A process that does not see the pods' processes looks for netfilter rules that drop.
func TestReachWithoutPods(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var drop error
	p := targetProbe{kubepods: dir, blocked: func() error { return drop }}
	if err := p.check(t.Context()); err == nil || errors.Is(err, errUnreachable) {
		t.Errorf("nothing drops: %v", err)
	}
	drop = errors.New("drops")
	if err := p.check(t.Context()); !errors.Is(err, errUnreachable) {
		t.Errorf("netfilter drops: %v", err)
	}
}

// A session that engages does not keep the state of one whose target was unreachable.
func TestStateAfterUnreachable(t *testing.T) {
	s := newStatus(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), server.NewGate())
	for _, step := range []struct {
		do   func()
		want float64
	}{
		{s.engaged, 1},
		{func() { s.unreachable(errUnreachable) }, 0},
		{s.on, 0},
		{func() { s.set(stateWaiting); s.engaged() }, 1},
	} {
		step.do()
		if got := testutil.ToFloat64(s.state.WithLabelValues(string(stateOn))); got != step.want {
			t.Errorf("state on: %v, want %v", got, step.want)
		}
	}
}

// While pods do not reach the target, their sockets that wait for it are closed once,
// and the kernel hears that the fallbacks are still checked.
func TestFollowReach(t *testing.T) {
	var calls []string
	call := func(name string) error { calls = append(calls, name); return nil }
	resumes := false
	f := reachFollower{
		status:   newStatus(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), server.NewGate()),
		withdraw: func() error { return call("withdraw") },
		resume:   func() (bool, error) { return resumes, call("resume") },
		keep:     func() error { return call("keep") },
		free:     func() { _ = call("free") },
	}
	for _, step := range []struct {
		result  error
		resumes bool
		want    string
		next    time.Duration
	}{
		{nil, false, "", reachInterval},
		{errors.New("cannot enter pods"), false, "", reachInterval},
		{errUnreachable, false, "withdraw free", lostInterval},
		{errUnreachable, false, "keep", lostInterval},
		{nil, false, "resume keep", lostInterval}, // another process redirects
		{nil, true, "resume", reachInterval},
		{nil, false, "", reachInterval},
	} {
		calls, resumes = nil, step.resumes
		f.step(step.result)
		if got := strings.Join(calls, " "); got != step.want || f.interval() != step.next {
			t.Errorf("%v: %q, then %v; want %q, %v", step.result, got, f.interval(), step.want, step.next)
		}
	}
}
