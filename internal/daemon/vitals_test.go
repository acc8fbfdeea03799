package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// What the redirection beats is handed on while we are ready; when it has
// withdrawn, what we ask ourselves.
func TestVitals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []supervise.Report
		v := &vitals{log: slog.New(slog.DiscardHandler), tell: func(r supervise.Report) error {
			told = append(told, r)
			return nil
		}}
		// after returns what is told in the next two intervals.
		after := func() []supervise.Report {
			v.mu.Lock()
			told = nil
			v.mu.Unlock()
			time.Sleep(2*vitalsInterval + vitalsInterval/2)
			v.mu.Lock()
			defer v.mu.Unlock()
			return told
		}
		report := supervise.Report{Cgroup: "/kubepods", Targets: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:20053")}, Silence: 400 * time.Millisecond}
		v.answered(report)
		if len(told) != 0 {
			t.Errorf("told before ready: %+v", told)
		}
		var silent atomic.Bool
		v.start(t.Context(), func(context.Context) error {
			if silent.Load() {
				return context.DeadlineExceeded
			}
			return nil
		})
		defer v.stop()
		if got := after(); len(got) != 0 {
			t.Errorf("told while a redirection is in force and silent: %+v", got)
		}
		v.answered(report)
		if len(told) != 1 || told[0].Silence != report.Silence {
			t.Errorf("told of an answer: %+v", told)
		}
		v.withdrawn()
		if got := after(); len(got) < 2 || got[0].Silence != 0 || got[0].Cgroup != report.Cgroup {
			t.Errorf("told while none is in force: %+v", got)
		}
		silent.Store(true)
		if got := after(); len(got) != 0 {
			t.Errorf("told while we do not answer: %+v", got)
		}
		silent.Store(false)
		v.stop()
		if got := after(); len(got) != 0 {
			t.Errorf("told after the end: %+v", got)
		}
	})
}

// Sockets are orphans only where nobody is alive, and are freed at every target.
func TestOrphans(t *testing.T) {
	target := func(s string) bpf.Service { return bpf.Service{Target: netip.MustParseAddrPort(s)} }
	left := bpf.Pinned{Hooks: []string{"connect4"}, Services: []bpf.Service{target("10.0.0.1:20053"), target("[fd00::1]:20053"), target("10.0.0.1:20053")}}
	detached, alive := left, left
	detached.Hooks, alive.Canary = nil, true
	for _, tc := range []struct {
		name   string
		pinned []bpf.Pinned
		want   int
	}{
		{"nothing pinned", nil, 0},
		{"left behind", []bpf.Pinned{left}, 2},
		{"detached", []bpf.Pinned{detached}, 0},
		{"somebody is there", []bpf.Pinned{left, alive}, 0},
	} {
		if got := orphans(tc.pinned); len(got) != tc.want {
			t.Errorf("%s: %v, want %d targets", tc.name, got, tc.want)
		}
	}
}
