package kill

import (
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// exhaust takes memory of m away until the channel is closed: what is in use, then
// less and less.
func exhaust(t *testing.T, m *lab.Memory, until <-chan struct{}) {
	t.Helper()
	defer m.Unlimit(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.Patience)
	for {
		m.Limit(t, m.Used(t)-256<<10)
		select {
		case <-until:
			return
		case <-tick.C:
		case <-late:
			t.Fatalf("nobody is killed with %d bytes in use", m.Used(t))
		}
	}
}
