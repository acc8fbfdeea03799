package fastpath

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestPlansOfReloads: a reload must not make tables for which the cache has not given up
// memory.
func TestPlansOfReloads(t *testing.T) {
	off := Plan{Mode: config.FastpathOff, Entries: 1024}
	on, more := Plan{Mode: config.FastpathOn, Entries: 1024}, Plan{Mode: config.FastpathAuto, Entries: 2048}
	for _, test := range []struct {
		name        string
		first, next Plan
		most        int64
		refused     bool
	}{
		{"the same", on, on, more.bytes(), false},
		{"off", on, off, more.bytes(), false},
		{"on", off, on, more.bytes(), true},
		{"more entries", on, more, more.bytes(), true},
		{"fewer entries", more, on, more.bytes(), false},
		{"too many entries: Open reports it", on, more, on.bytes(), false},
	} {
		c := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), test.most, test.first, nil)
		if err := c.Check(test.next); (err != nil) != test.refused {
			t.Errorf("%s: error %v, want one: %t", test.name, err, test.refused)
		}
	}
}
