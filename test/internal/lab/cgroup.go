package lab

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// cgroupMount is where this machine has its cgroup v2 hierarchy.
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
	Skip(t, "no cgroup v2 hierarchy is mounted")
	return ""
}

var cgroupSeq atomic.Int64

// NewKubepods makes a cgroup that stands for the one of all pods, below one that
// stands for the hierarchy's root. Both go with the test.
func NewKubepods(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	root := filepath.Join(cgroupMount(t), fmt.Sprintf("nodens-lab-%d-%d", os.Getpid(), cgroupSeq.Add(1)))
	MakeCgroup(t, root)
	return MakeCgroup(t, filepath.Join(root, "kubepods"))
}

// MakeCgroup makes a cgroup that goes with the test, after the processes that the
// test starts in it from here on.
func MakeCgroup(t testing.TB, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
	return dir
}
