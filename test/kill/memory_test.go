package kill

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// exhaust lowers the limit of m below its usage again and again until the worker of d
// has ended.
func exhaust(t *testing.T, m *lab.Memory, d *daemon) {
	t.Helper()
	worker := d.openWorker(t)
	defer unix.Close(worker)
	defer m.Unlimit(t)
	for late := time.Now().Add(lab.QueryTimeout); time.Now().Before(late); {
		m.Limit(t, m.Used(t)-256<<10)
		// Once the worker has ended, a lower limit would kill the supervisor.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(worker), Events: unix.POLLIN}}, 10)
		if n > 0 {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	t.Fatalf("no process is killed with %d bytes in use", m.Used(t))
}
