package redirect

import (
	"net/netip"
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
