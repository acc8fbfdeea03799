package kill

import (
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// exhaust lowers the limit of m below its usage again and again until the channel
// is closed.
func exhaust(t *testing.T, m *lab.Memory, until <-chan struct{}) {
	t.Helper()
	defer m.Unlimit(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(lab.QueryTimeout)
	for {
		m.Limit(t, m.Used(t)-256<<10)
		select {
		case <-until:
			return
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no process is killed with %d bytes in use", m.Used(t))
		}
	}
}
