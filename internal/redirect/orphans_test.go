package redirect

import (
	"net/netip"
	"testing"

	"github.com/nodens-dns/nodens/bpf"
)

// Targets are orphans only if no daemon is alive. Each is returned once.
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
		{"no daemon", []bpf.Pinned{left}, 2},
		{"detached", []bpf.Pinned{detached}, 0},
		{"another version is alive", []bpf.Pinned{left, alive}, 0},
	} {
		if got := orphans(tc.pinned); len(got) != tc.want {
			t.Errorf("%s: %v, want %d targets", tc.name, got, tc.want)
		}
	}
}
