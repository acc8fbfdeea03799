package redirect

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
)

// Those that answer are used; if none does, those that were not asked; at last all.
func TestUsableFallbacks(t *testing.T) {
	addrs := func(texts ...string) (all []netip.AddrPort) {
		for _, s := range texts {
			all = append(all, netip.MustParseAddrPort(s))
		}
		return all
	}
	all := addrs("10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53")
	vip := netip.MustParseAddrPort("169.254.20.10:53")
	log := slog.New(slog.DiscardHandler)
	s := &session{cfg: Config{Logger: log}, status: newStatus(log, prometheus.NewRegistry(), server.NewGate())}
	for _, tc := range []struct {
		name   string
		pinned []netip.AddrPort
		silent []netip.AddrPort
		want   []netip.AddrPort
	}{
		{"nothing is known", nil, nil, all},
		{"a predecessor's", all[1:2], nil, all[1:2]},
		{"a predecessor's that is no longer wanted", addrs("10.0.0.9:53"), nil, all},
		{"one is silent", nil, all[:1], all[1:]},
		{"the predecessor's is silent", all[1:2], all[1:2], addrs("10.0.0.1:53", "10.0.0.3:53")},
		{"all are silent", nil, all, all},
	} {
		f := newFallbacks(s, []bpf.Service{{VIP: vip, Fallbacks: all}}, []bpf.Pinned{{Services: []bpf.Service{{VIP: vip, Fallbacks: tc.pinned}}}})
		for _, a := range tc.silent {
			f.health[a] = silent
		}
		if got := f.of(vip); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// However many there are, each is asked over UDP and over TCP, and in turn.
func TestTurn(t *testing.T) {
	for n := 1; n <= 12; n++ {
		var all []netip.AddrPort
		for i := range n {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 53))
		}
		first := turn(5)
		asked := make(map[netip.AddrPort]bool)
		for range (n + fallbacksPerRound - 1) / fallbacksPerRound {
			for _, a := range first.next(all) {
				asked[a] = true
			}
		}
		if len(asked) != n {
			t.Errorf("%d of %d were asked", len(asked), n)
		}
	}
}
