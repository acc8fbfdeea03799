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

// Each stall of the worker leads here: without sockets there is nothing to log.
func TestNoPodSocketsToClose(t *testing.T) {
	var log strings.Builder
	sockets := podSockets{log: slog.New(slog.NewTextHandler(&log, nil))}
	cgroup := t.TempDir()
	r := supervise.Report{Cgroup: cgroup, Targets: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}}
	sockets.close(r)
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	// What the kernel shows of processes outside of the PID namespace, as in the tier resilient.
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sockets.close(r)
	}
	if strings.Count(log.String(), "needs hostPID") != 1 {
		t.Errorf("without hostPID, two stalls logged: %s", log.String())
	}
}
