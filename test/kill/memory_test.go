package kill

import (
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// exhaust lowers the limit of m below its usage again and again until the OOM killer has
// chosen the worker. A lower limit after that would kill the supervisor, because the
// worker's memory is free before it has ended.
func exhaust(t *testing.T, m *lab.Memory) {
	t.Helper()
	defer m.Unlimit(t)
	kills := m.Kills(t)
	for late := time.Now().Add(lab.QueryTimeout); time.Now().Before(late); pause(t, 10*time.Millisecond) {
		used := m.Used(t)
		if m.Kills(t) > kills {
			return
		}
		m.Limit(t, used-256<<10)
	}
	t.Fatalf("no process is killed with %d bytes in use", m.Used(t))
}
