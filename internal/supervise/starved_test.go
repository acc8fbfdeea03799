package supervise

import (
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/tick"
)

// Threads that share one CPU wait for each other.
func TestStarved(t *testing.T) {
	var cpus, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	for i := 0; one.Count() == 0; i++ {
		if cpus.IsSet(i) {
			one.Set(i)
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	var s starvation
	s.begin(os.Getpid(), time.Now())
	var stop atomic.Bool
	for range 3 {
		go func() {
			runtime.LockOSThread() // without unlock: the thread ends with its affinity
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			for !stop.Load() {
			}
		}()
	}
	defer stop.Store(true)
	for deadline := time.Now().Add(time.Minute); !s.starved(os.Getpid(), time.Now()); <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not starved after a minute")
		}
	}
}

func TestNotStarved(t *testing.T) {
	var s starvation
	if s.starved(os.Getpid(), time.Now()) {
		t.Error("starved without a begin")
	}
	s = starvation{since: time.Now().Add(-time.Hour), delay: runDelay(os.Getpid())}
	if s.starved(os.Getpid(), time.Now()) {
		t.Error("starved for less than half of an hour")
	}
}

// A starved worker gets more timeouts, until its next heartbeat.
func TestExtendedTimeout(t *testing.T) {
	w := &watchdog{timeouts: timeouts{start: time.Second, disconnect: 200 * ms, kill: 450 * ms}}
	w.wait()
	for _, want := range []time.Duration{450 * ms, 900 * ms} {
		w.heartbeat()
		if want == 900*ms {
			w.extend()
		}
		times, _ := actions(w)
		if got := times[len(times)-1]; got != want {
			t.Errorf("killed at %v, want %v", got, want)
		}
	}
	if w.heartbeat(); w.killTimeout() != 450*ms {
		t.Errorf("after a heartbeat: killed at %v", w.killTimeout())
	}
}

// A worker that waits for a CPU is killed once it hangs without waiting, or after ten
// timeouts.
func TestStarvedWorker(t *testing.T) {
	for _, extensions := range []int{0, 1, maxExtensions} {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		w := &worker{pid: cmd.Process.Pid, watchdog: watchdog{timeouts: timeouts{kill: time.Hour}}}
		s := &supervisor{cfg: Config{}.withDefaults(), worker: w, timeout: tick.New()}
		timeout := func(starved bool) {
			w.watchdog.waiting = time.Hour
			w.starvation.since = w.starvation.since.Add(-time.Hour)
			if starved {
				w.starvation.delay -= time.Hour
			}
			s.checkWorker()
		}
		w.watchdog.heartbeat()
		s.checkWorker() // after half of the time
		for i := range extensions {
			if timeout(true); w.watchdog.extensions != i+1 {
				t.Fatalf("timeout %d: extended %d times", i+1, w.watchdog.extensions)
			}
			if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
				t.Fatalf("timeout %d: the worker has ended: %v", i+1, err)
			}
		}
		if timeout(extensions == maxExtensions); w.watchdog.extensions != extensions {
			t.Fatalf("extended %d times, want %d", w.watchdog.extensions, extensions)
		}
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("after %d extensions, the worker ended with %v", extensions, err)
		}
	}
}
