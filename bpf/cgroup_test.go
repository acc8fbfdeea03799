package bpf

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// cgroupMount returns where this machine has its cgroup v2 hierarchy.
func cgroupMount(t testing.TB) string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if before, after, ok := strings.Cut(sc.Text(), " - "); ok && strings.HasPrefix(after, "cgroup2 ") {
			return strings.Fields(before)[4]
		}
	}
	skip(t, "no cgroup v2 hierarchy is mounted")
	return ""
}

var cgroupSeq atomic.Int64

// newCgroup makes a cgroup below parent, or below the root where that is empty.
// It goes with the test.
func newCgroup(t testing.TB, parent, name string) string {
	t.Helper()
	if parent == "" {
		parent = filepath.Join(cgroupMount(t), fmt.Sprintf("nodens-test-%d-%d", os.Getpid(), cgroupSeq.Add(1)))
		makeCgroup(t, parent)
	}
	dir := filepath.Join(parent, name)
	makeCgroup(t, dir)
	return dir
}

func makeCgroup(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
}
