package kill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// memory is a cgroup that limits memory, v2 or v1.
type memory struct {
	dir          string
	limit, usage string // files
	unlimited    string
}

func newMemory(t *testing.T) *memory {
	t.Helper()
	name := fmt.Sprintf("nodens-kill-memory-%d", os.Getpid())
	if mount, ok := lab.FindMount(t, "cgroup", "memory"); ok {
		return &memory{lab.MakeCgroup(t, filepath.Join(mount, name)), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"}
	}
	mount, ok := lab.FindMount(t, "cgroup2", "")
	if !ok {
		lab.Skip(t, "no cgroup hierarchy is mounted")
	}
	// Not in its controllers: v2 has no memory here.
	if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		lab.Skip(t, fmt.Sprintf("no memory cgroups: %v", err))
	}
	return &memory{lab.MakeCgroup(t, filepath.Join(mount, name)), "memory.max", "memory.current", "max"}
}

func (m *memory) read(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// set sets the limit. Where v1 cannot shrink to it, it stays as it was.
func (m *memory) set(t *testing.T, limit string) {
	t.Helper()
	err := os.WriteFile(filepath.Join(m.dir, m.limit), []byte(limit), 0)
	if err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
}

// exhaust takes memory away until the channel is closed: what is in use, then
// less and less.
func (m *memory) exhaust(t *testing.T, until <-chan struct{}) {
	t.Helper()
	defer m.set(t, m.unlimited)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.Patience)
	for {
		m.set(t, strconv.FormatInt(m.read(t, m.usage)-256<<10, 10))
		select {
		case <-until:
			return
		case <-tick.C:
		case <-late:
			t.Fatalf("nobody is killed with %d bytes in use", m.read(t, m.usage))
		}
	}
}
