package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// maxExtensions is the number of further timeouts that a worker without CPU gets.
const maxExtensions = 9

// starvation distinguishes a worker that waits for a CPU from one that hangs. A new worker on
// the same node would wait, too.
type starvation struct {
	since time.Time
	delay time.Duration // runDelay at that time
}

// begin starts to measure a worker.
func (s *starvation) begin(pid int, now time.Time) {
	s.since = now
	s.delay = runDelay(pid)
}

// starved reports whether the worker's threads together waited for a CPU for at least
// half of the time since begin. Then it calls begin.
func (s *starvation) starved(pid int, now time.Time) bool {
	before := *s
	s.begin(pid, now)
	return !before.since.IsZero() && s.delay-before.delay >= now.Sub(before.since)/2
}

// runDelay returns the time for which the threads of a process, together, were runnable
// without a CPU: the second field of /proc/PID/task/TID/schedstat, in nanoseconds
// (Documentation/scheduler/sched-stats.rst). It is 0 if the kernel does not count it.
func runDelay(pid int) (sum time.Duration) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		var running, waiting time.Duration
		if _, err := fmt.Sscan(string(text), &running, &waiting); err == nil {
			sum += waiting
		}
	}
	return sum
}
