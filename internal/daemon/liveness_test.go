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

// While sockets are redirected, only the answers of the targets are reported.
// Otherwise the daemon probes itself. Nothing is reported before up and after down.
func TestLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []supervise.Report // guarded by l.mu, with which send is called
		var hung atomic.Bool
		l := &liveness{
			log: slog.New(slog.DiscardHandler), stop: func() {}, ended: make(chan struct{}, 1),
			send: func(r supervise.Report) error { reports = append(reports, r); return nil },
			probe: func(context.Context) error {
				if hung.Load() {
					return context.DeadlineExceeded
				}
				return nil
			},
		}
		// next returns the reports of the next two intervals.
		next := func() []supervise.Report {
			l.mu.Lock()
			reports = nil
			l.mu.Unlock()
			time.Sleep(2*livenessInterval + livenessInterval/2)
			l.mu.Lock()
			defer l.mu.Unlock()
			return reports
		}
		report := supervise.Report{Cgroup: "/kubepods", Targets: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:20053")}, Timeout: 400 * time.Millisecond}
		l.answered(report)
		if len(reports) != 0 {
			t.Errorf("reports before up: %+v", reports)
		}
		l.up(t.Context())
		defer l.down(t.Context())
		if got := next(); len(got) != 0 {
			t.Errorf("reports while sockets are redirected and the target does not answer: %+v", got)
		}
		l.answered(report)
		if len(reports) != 1 || reports[0].Timeout != report.Timeout {
			t.Errorf("reports after an answer: %+v", reports)
		}
		l.withdrawn()
		if got := next(); len(got) < 2 || got[0].Timeout != 0 || got[0].Cgroup != report.Cgroup {
			t.Errorf("reports without redirection: %+v", got)
		}
		hung.Store(true)
		if got := next(); len(got) != 0 {
			t.Errorf("reports while the daemon does not answer: %+v", got)
		}
		hung.Store(false)
		l.down(t.Context())
		if got := next(); len(got) != 0 {
			t.Errorf("reports after down: %+v", got)
		}
	})
}
