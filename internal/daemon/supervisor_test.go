package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// When ctx is done, SIGTERM follows the earlier signals.
func TestRelaySignals(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	signals := make(chan os.Signal)
	all := relaySignals(ctx, signals)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1} {
		signals <- s
		if got := <-all; got != s {
			t.Errorf("got %v, want %v", got, s)
		}
	}
	cancel()
	if got := <-all; got != syscall.SIGTERM {
		t.Errorf("after ctx: %v", got)
	}
}

// Each stall of the worker leads here. Without sockets there is nothing to log. A
// privilege that is missing is logged once for both targets, and again after a success.
func TestPodSockets(t *testing.T) {
	var log strings.Builder
	sockets := podSockets{log: slog.New(slog.NewTextHandler(&log, nil))}
	r := supervise.Report{Cgroup: t.TempDir(), Targets: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")}}
	for i, step := range []struct {
		processes string // "0": of another PID namespace, as in the tier resilient
		lines     int    // logged so far
	}{{"", 0}, {"0\n", 1}, {"0\n", 1}, {"", 1}, {"0\n", 2}} {
		lab.WriteFile(t, filepath.Join(r.Cgroup, "cgroup.procs"), step.processes)
		sockets.close(r)
		if lines := strings.Count(log.String(), "\n"); lines != step.lines || strings.Count(log.String(), "needs hostPID") != lines {
			t.Errorf("step %d: %d lines, want %d:\n%s", i, lines, step.lines, log.String())
		}
	}
}
