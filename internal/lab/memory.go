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

// Memory is a cgroup v2 or v1 that limits memory.
type Memory struct {
	Dir          string
	limit, usage string // file names
	unlimited    string
}

// NewMemory makes a Memory, as MakeCgroup does.
func NewMemory(t testing.TB) *Memory {
	t.Helper()
	NeedRoot(t)
	name := fmt.Sprintf("nodens-memory-%d-%d", os.Getpid(), cgroupSeq.Add(1))
	if mount, ok := findMount(t, "cgroup", "memory"); ok {
		return &Memory{MakeCgroup(t, filepath.Join(mount, name)), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"}
	}
	mount, ok := findMount(t, "cgroup2", "")
	if !ok {
		Skip(t, "no cgroup hierarchy is mounted")
	}
	// The file system is cgroup v2 without the memory controller.
	if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		Skip(t, fmt.Sprintf("no memory cgroups: %v", err))
	}
	return &Memory{MakeCgroup(t, filepath.Join(mount, name)), "memory.max", "memory.current", "max"}
}

// Used is the memory in use by the group's processes, in bytes, including file
// pages.
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

// IdleFiles is the memory that the kernel can free by dropping file pages, in
// bytes.
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

// Kills is how many processes of the group the OOM killer has killed.
func (m *Memory) Kills(t testing.TB) (kills int) {
	t.Helper()
	for _, file := range []string{"memory.oom_control", "memory.events"} { // v1, v2
		text, err := os.ReadFile(filepath.Join(m.Dir, file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "oom_kill %d", &kills)
		}
	}
	return kills
}

// Limit sets the limit in bytes. If more is in use and cgroup v1 cannot reclaim
// it, the limit does not change.
func (m *Memory) Limit(t testing.TB, bytes int64) {
	t.Helper()
	m.set(t, strconv.FormatInt(bytes, 10))
}

// Unlimit removes the limit.
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
