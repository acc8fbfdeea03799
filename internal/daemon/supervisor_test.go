package daemon

import (
	"context"
	"os"
	"syscall"
	"testing"
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
