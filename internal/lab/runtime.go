package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// RunTime is the time that all threads of a process ran, with the softirqs that
// interrupted them: the first field of schedstat, see the kernel's
// Documentation/scheduler/sched-stats.rst.
func RunTime(t testing.TB, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d: no threads: %v", pid, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		ns, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", name, text, err)
		}
		sum += time.Duration(ns)
	}
	return sum
}
