package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Memory is a cgroup that limits memory, v2 or v1.
type Memory struct {
	Dir          string
	limit, usage string // files
	unlimited    string
}

// NewMemory makes one that goes with the test, as by MakeCgroup.
func NewMemory(t testing.TB) *Memory {
	t.Helper()
	NeedRoot(t)
	name := fmt.Sprintf("nodens-memory-%d-%d", os.Getpid(), cgroupSeq.Add(1))
	if mount, ok := FindMount(t, "cgroup", "memory"); ok {
		return &Memory{MakeCgroup(t, filepath.Join(mount, name)), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"}
	}
	mount, ok := FindMount(t, "cgroup2", "")
	if !ok {
		Skip(t, "no cgroup hierarchy is mounted")
	}
	// Not in its controllers: v2 has no memory here.
	if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		Skip(t, fmt.Sprintf("no memory cgroups: %v", err))
	}
	return &Memory{MakeCgroup(t, filepath.Join(mount, name)), "memory.max", "memory.current", "max"}
}

// Used is what its processes take, in octets, files among it.
func (m *Memory) Used(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Dir, m.usage))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// IdleFiles is what the kernel can have back by dropping files, in octets.
func (m *Memory) IdleFiles(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Dir, "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	var idle int64
	for line := range strings.Lines(string(text)) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "total_inactive_file" || name == "inactive_file" {
			idle, _ = strconv.ParseInt(n, 10, 64)
		}
	}
	return idle
}

// Limit sets the limit, in octets. Where v1 cannot shrink to it, since more has been
// taken meanwhile, it stays as it was.
func (m *Memory) Limit(t testing.TB, octets int64) {
	t.Helper()
	m.set(t, strconv.FormatInt(octets, 10))
}

// Unlimit takes the limit away.
func (m *Memory) Unlimit(t testing.TB) {
	t.Helper()
	m.set(t, m.unlimited)
}

func (m *Memory) set(t testing.TB, limit string) {
	t.Helper()
	err := os.WriteFile(filepath.Join(m.Dir, m.limit), []byte(limit), 0)
	if err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
}
