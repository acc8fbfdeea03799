package server

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
)

// idleFastpath answers nothing.
type idleFastpath struct{}

func (idleFastpath) Listen([]netip.AddrPort) uint32         { return 1 }
func (idleFastpath) Heard(netip.AddrPort, uint16, int) bool { return false }
func (idleFastpath) Put(KernelAnswer) bool                  { return false }
func (idleFastpath) Counts(int) KernelCounts                { return KernelCounts{} }

// TestTooManyKernelZones: zones for which the kernel has no counters are reported once,
// and are not answered there.
func TestTooManyKernelZones(t *testing.T) {
	ts, c := newTestServer(t, Config{}, zone("first.example.", newCache(t), nil)), newCache(t)
	var log strings.Builder
	ts.log = slog.New(slog.NewTextHandler(&log, nil))
	apply := func(n int) {
		t.Helper()
		var zones []*Zone
		for i := range n {
			zones = append(zones, zone(fmt.Sprintf("z%d.example.", i), c, nil))
		}
		if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: zones, Fastpath: idleFastpath{}}}); err != nil {
			t.Fatal(err)
		}
	}
	apply(KernelZones)
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	apply(KernelZones + 1)
	apply(KernelZones + 2)
	if n := strings.Count(log.String(), "no counters"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, &log)
	}
}
