package kill

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// maxIdle is the share of a core that an idle nodens may use: supervisor and worker with
// redirected sockets.
const maxIdle = 0.0005

// TestIdle measures supervisor and worker while nobody sends a query.
func TestIdle(t *testing.T) {
	if *idle == 0 {
		t.Skip("a benchmark: set -idle")
	}
	n := newNode(t)
	n.writeConf(t, "fallback "+coreDNS+" "+upstream, "prometheus 127.0.0.1:9253", "reload")
	for i := range 3 {
		p := n.addPod(t, fmt.Sprint("pod", i))
		lab.Command{Netns: p.netns, Cgroup: p.cgroup, Args: []string{"sleep", "1000"}}.Start(t)
	}
	d := n.start(t, lab.NewMemory(t))
	worker := d.worker(t)
	pause(t, 15*time.Second) // until a node counts as idle, and the first checks are over
	began := time.Now()
	before := [2]time.Duration{runTime(t, d.PID()), runTime(t, worker)}
	pause(t, *idle)
	elapsed := float64(time.Since(began))
	s, w := float64(runTime(t, d.PID())-before[0])/elapsed, float64(runTime(t, worker)-before[1])/elapsed
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("idle with redirection, share of a core: supervisor %.4f%%, worker %.4f%%, both %.4f%% (goal %.2f%%); load average %s",
		s*100, w*100, (s+w)*100, maxIdle*100, load)
	if *goals && s+w > maxIdle {
		t.Errorf("the goal is %.2f%%", maxIdle*100)
	}
}

// runTime is the time that the threads of a process ran.
func runTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d: no threads: %v", pid, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has just ended
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		ns, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", f, text, err)
		}
		sum += time.Duration(ns)
	}
	return sum
}
