package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CgroupMount returns where the cgroup v2 hierarchy is mounted.
func CgroupMount(t testing.TB) string {
	t.Helper()
	if dir, ok := findMount(t, "cgroup2", ""); ok {
		return dir
	}
	Skip(t, "no cgroup v2 hierarchy is mounted")
	return ""
}

// findMount finds a mount by its type and a super block option, see
// proc_pid_mountinfo(5).
func findMount(t testing.TB, fsType, option string) (string, bool) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 || right[0] != fsType {
			continue
		}
		if option == "" || strings.Contains(","+right[2]+",", ","+option+",") {
			return left[4], true
		}
	}
	return "", false
}

var cgroupSeq atomic.Int64

// NewKubepods makes the cgroup of all pods, below one that stands for the root of
// the hierarchy. Both are removed at the end of the test.
func NewKubepods(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	root := filepath.Join(CgroupMount(t), fmt.Sprintf("nodens-lab-%d-%d", os.Getpid(), cgroupSeq.Add(1)))
	MakeCgroup(t, root)
	return MakeCgroup(t, filepath.Join(root, "kubepods"))
}

// MakeCgroup makes a cgroup. The test removes it at its end, after the processes
// that it starts later.
func MakeCgroup(t testing.TB, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, dir) })
	return dir
}

// removeCgroup waits for processes that are ending: a killed process closes its
// files before it leaves its cgroup.
func removeCgroup(t testing.TB, dir string) {
	t.Helper()
	for late := time.Now().Add(QueryTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || os.IsNotExist(err) {
			return
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(late) {
			t.Error(err)
			return
		}
	}
}
