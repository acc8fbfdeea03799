package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
