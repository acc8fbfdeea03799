package kill

import (
	"fmt"
	"os"
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
	before := [2]time.Duration{lab.RunTime(t, d.PID()), lab.RunTime(t, worker)}
	pause(t, *idle)
	elapsed := float64(time.Since(began))
	s, w := float64(lab.RunTime(t, d.PID())-before[0])/elapsed, float64(lab.RunTime(t, worker)-before[1])/elapsed
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("idle with redirection, share of a core: supervisor %.4f%%, worker %.4f%%, both %.4f%% (goal %.2f%%); load average %s",
		s*100, w*100, (s+w)*100, maxIdle*100, load)
	if *goals && s+w > maxIdle {
		t.Errorf("the goal is %.2f%%", maxIdle*100)
	}
}
