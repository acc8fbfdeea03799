package redirect

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/bpf"
)

// Targets are orphans only if no daemon is alive. Each is returned once.
func TestOrphans(t *testing.T) {
	target := func(s string) bpf.Service { return bpf.Service{Target: netip.MustParseAddrPort(s)} }
	left := bpf.Pinned{Ours: true, Hooks: []string{"connect4"}, Services: []bpf.Service{target("10.0.0.1:20053"), target("[fd00::1]:20053"), target("10.0.0.1:20053")}}
	detached, alive, frozen, other := left, left, left, left
	other.Ours, other.Services = false, nil
	detached.Hooks, alive.Canary, frozen.Canary, frozen.HeartbeatAge = nil, true, true, 2*bpf.StaleHeartbeat
	for _, tc := range []struct {
		name   string
		pinned []bpf.Pinned
		want   int
		frozen bool
	}{
		{"nothing pinned", nil, 0, false},
		{"no daemon", []bpf.Pinned{left}, 2, false},
		{"detached", []bpf.Pinned{detached}, 0, false},
		{"another version is alive", []bpf.Pinned{left, alive}, 0, false},
		{"another version", []bpf.Pinned{other}, 1, false},
		{"frozen", []bpf.Pinned{frozen}, 2, true},
		{"another version is alive, ours is frozen", []bpf.Pinned{frozen, alive}, 0, false},
	} {
		if got, frozen := orphans(tc.pinned, []bpf.Service{target("10.0.0.1:20054")}); len(got) != tc.want || frozen != tc.frozen {
			t.Errorf("%s: %v, frozen %t, want %d targets, frozen %t", tc.name, got, frozen, tc.want, tc.frozen)
		}
	}
}

// If closing sockets fails, nodens does not log that it closed sockets.
func TestFreeSocketsFails(t *testing.T) {
	for _, tc := range []struct{ procs, want, not string }{
		{"", "closed sockets of pods", "failed"},
		{"0\n", "closing sockets of pods failed", "closed sockets"}, // of processes that nodens does not see
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(tc.procs), 0o600); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		(&clientSockets{kubepods: dir, log: slog.New(slog.NewTextHandler(&log, nil))}).free(netip.MustParseAddrPort("192.0.2.1:53"), "test")
		if !strings.Contains(log.String(), tc.want) || strings.Contains(log.String(), tc.not) {
			t.Errorf("processes %q: %s", tc.procs, log.String())
		}
	}
}
