package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
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
	closePodSockets(slog.New(slog.NewTextHandler(&log, nil)), supervise.Report{
		Cgroup: t.TempDir(), Targets: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")},
	})
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
}
