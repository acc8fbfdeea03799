package redirect

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
)

// Those that answer are used. If none does, those that were not asked are used, else
// all.
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

// The kernel's map has a few of many fallbacks, and the process knows a bounded number.
// It prefers those that answer.
func TestManyFallbacks(t *testing.T) {
	all := manyFallbacks(3 * maxKnown)
	vip := netip.MustParseAddrPort("169.254.20.10:53")
	log := slog.New(slog.DiscardHandler)
	s := &session{cfg: Config{Logger: log}, status: newStatus(log, prometheus.NewRegistry(), server.NewGate())}
	old := bpf.Service{VIP: vip, Fallbacks: all[len(all)-1:]}
	f := newFallbacks(s, []bpf.Service{{VIP: vip, Fallbacks: all}}, []bpf.Pinned{{Services: []bpf.Service{old}}})
	used, spare := f.split()
	if !slices.Equal(used, old.Fallbacks) || len(spare) != maxKnown-1 {
		t.Errorf("%v are used, %d are spare", used, len(spare))
	}
	f.health[all[len(all)-1]] = silent
	if used, spare = f.split(); len(used) != bpf.MaxFallbacks || len(spare) != maxKnown-bpf.MaxFallbacks {
		t.Errorf("after its end: %v are used, %d are spare", used, len(spare))
	}
}

// A fallback that is removed while it is queried, or whose plan ends, leaves no metric.
func TestFallbackMetricEnds(t *testing.T) {
	all := manyFallbacks(2)
	vip := netip.MustParseAddrPort("169.254.20.10:53")
	log := slog.New(slog.DiscardHandler)
	s := &session{cfg: Config{Logger: log}, status: newStatus(log, prometheus.NewRegistry(), server.NewGate())}
	f := newFallbacks(s, []bpf.Service{{VIP: vip, Fallbacks: all[:1]}}, nil)
	f.health[all[0]] = silent
	for _, a := range all {
		f.note(a, "udp", errors.New("no answer"))
	}
	if n := testutil.CollectAndCount(s.status.fallback); n != 1 {
		t.Errorf("%d series, want that of %v only", n, all[0])
	}
	s.steering = newTasks(t.Context())
	if err := s.withdraw(); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(s.status.fallback); n != 0 {
		t.Errorf("%d series after the end", n)
	}
}

func manyFallbacks(n int) (all []netip.AddrPort) {
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 53))
	}
	return all
}

// However many fallbacks are known, each that the kernel has is asked within a minute,
// a round costs no more with spare ones, and each spare one is asked at some time.
func TestRounds(t *testing.T) {
	const inAMinute = int(time.Minute / fallbackInterval)
	for n := range 2*bpf.MaxFallbacks + 1 { // of two address families
		for _, spares := range []int{0, 1, maxKnown} {
			all := manyFallbacks(n + spares)
			r := newRounds()
			udp, tcp := make(map[netip.AddrPort]int), make(map[netip.AddrPort]int)
			for round := 1; round <= tcpRounds*maxKnown; round++ {
				over, overTCP := r.next(all[:n], all[n:])
				if most := max(minPerRound, (n+usedRounds-1)/usedRounds); len(over) > most {
					t.Fatalf("%d queries in a round, want %d at most", len(over), most)
				}
				for _, a := range over {
					udp[a] = round
				}
				for _, a := range overTCP {
					tcp[a] = round
				}
				for _, a := range all[:n] {
					if round >= inAMinute && udp[a] <= round-inAMinute {
						t.Fatalf("%d of the kernel's, %d spare: %v was not asked for a minute", n, spares, a)
					}
				}
			}
			if len(udp) != len(all) || len(tcp) != n {
				t.Errorf("%d of the kernel's, %d spare: %d were asked over UDP, %d over TCP", n, spares, len(udp), len(tcp))
			}
		}
	}
}
