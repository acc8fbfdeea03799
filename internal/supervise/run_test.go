package supervise

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const hangTimeout = 30 * time.Second

// limits are the timeouts of Config: short if a test needs them to expire, else
// longer than any test, also on a slow machine.
type limits struct{ StartTimeout, Timeout, StopTimeout time.Duration }

const quick = 400 * ms

func (l limits) text(t *testing.T) string {
	t.Helper()
	for _, d := range []*time.Duration{&l.StartTimeout, &l.Timeout, &l.StopTimeout} {
		if *d == 0 {
			*d = time.Hour
		}
	}
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// running is a supervisor process, and the output of it and its workers.
type running struct {
	cmd    *exec.Cmd
	lines  chan string
	done   chan struct{}
	worker int // PID of the latest
}

func start(t *testing.T, l limits, workers ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command("/proc/self/exe"), lines: make(chan string), done: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), envRole+"=supervisor", envDir+"="+t.TempDir(), envTimeouts+"="+l.text(t),
		envWorkers+"="+strings.Join(workers, " "), "GORACE=atexit_sleep_ms=0")
	r.cmd.Stderr = os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		defer close(r.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			r.lines <- sc.Text()
		}
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() { r.end() })
	return r
}

// end ends the supervisor and its worker, even if that is stopped.
func (r *running) end() {
	_ = r.cmd.Process.Kill()
	if r.worker > 0 {
		_ = syscall.Kill(r.worker, syscall.SIGCONT)
	}
	for range r.lines {
	}
	<-r.done
}

// waitLine returns the rest of the next line with that prefix. It skips other
// lines; the test fails if one of them has a prefix of never.
func (r *running) waitLine(t *testing.T, prefix string, never ...string) string {
	t.Helper()
	timeout := time.After(hangTimeout)
	for {
		select {
		case line, ok := <-r.lines:
			if !ok {
				t.Fatalf("output ended without %q", prefix)
			}
			if f := strings.Fields(line); len(f) == 5 && f[0] == "worker" {
				r.worker, _ = strconv.Atoi(f[3])
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return strings.TrimSpace(rest)
			}
			for _, n := range never {
				if strings.HasPrefix(line, n) {
					t.Fatalf("%q before %q", line, prefix)
				}
			}
		case <-timeout:
			t.Fatalf("no line %q", prefix)
		}
	}
}

func (r *running) signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("signal %v to %d: %v", s, pid, err)
	}
}

// status waits for the end of the supervisor.
func (r *running) status(t *testing.T) int {
	t.Helper()
	timeout := time.After(hangTimeout)
	for {
		select {
		case _, ok := <-r.lines:
			if !ok {
				<-r.done
				return r.cmd.ProcessState.ExitCode()
			}
		case <-timeout:
			t.Fatal("the supervisor has not ended")
		}
	}
}

func (r *running) wantStatus(t *testing.T, want int) {
	t.Helper()
	if got := r.status(t); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
}

const disconnected = "/kube pods [[fd00::2]:10053]"

// A worker that ends before its first heartbeat is not restarted: the supervisor
// exits with its status.
func TestEndBeforeFirstHeartbeat(t *testing.T) {
	t.Parallel()
	start(t, limits{}, "exit7").wantStatus(t, 7)
	start(t, limits{}, "crash", "exit7").wantStatus(t, 7)
	start(t, limits{StartTimeout: quick}, "no-heartbeat").wantStatus(t, 128+int(syscall.SIGKILL))
	start(t, limits{}, "end").wantStatus(t, 0)
}

// After a death, clients are disconnected and the next worker starts.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, death := range []string{"crash", "crash7"} {
		r := start(t, limits{}, death, death, "serve")
		r.waitLine(t, "worker 0")
		if got := r.waitLine(t, "disconnect"); got != disconnected {
			t.Errorf("disconnected %q", got)
		}
		r.waitLine(t, "worker 2 serve")
		r.waitLine(t, "serving")
		r.signal(t, r.cmd.Process.Pid, syscall.SIGTERM)
		r.waitLine(t, "got terminated")
		r.wantStatus(t, 0)
	}
}

func TestKilledWorker(t *testing.T) {
	t.Parallel()
	r := start(t, limits{}, "serve")
	r.waitLine(t, "worker 0")
	r.waitLine(t, "serving")
	first := r.worker
	r.signal(t, first, syscall.SIGKILL)
	r.waitLine(t, "worker 1")
	if r.worker == first {
		t.Errorf("the PID of the next worker is %d too", first)
	}
	r.waitLine(t, "serving")
	r.signal(t, r.worker, syscall.SIGTERM) // not from the supervisor: a regular stop
	r.wantStatus(t, 0)
}

// A hung worker has ended when the next one starts.
func TestHang(t *testing.T) {
	t.Parallel()
	r := start(t, limits{Timeout: quick}, "stop", "exit7")
	r.waitLine(t, "worker 0")
	hung := r.worker
	r.waitLine(t, "disconnect", "worker 1") // at the first stage
	r.waitLine(t, "worker 1 exit7")
	if err := syscall.Kill(hung, 0); err != syscall.ESRCH {
		t.Errorf("the hung worker still exists: %v", err)
	}
	r.wantStatus(t, 7)
}

// A worker that was stopped for a while continues; its clients were disconnected.
func TestPausedWorker(t *testing.T) {
	t.Parallel()
	r := start(t, limits{}, "serve", "exit7")
	r.waitLine(t, "serving")
	for range 3 {
		for deadline := time.Now().Add(hangTimeout); !r.pause(t); {
			if time.Now().After(deadline) {
				t.Fatal("no clients were disconnected")
			}
		}
	}
}

// pause stops the worker and reports whether clients were disconnected before it
// continued. On a slow machine that may have happened before the stop.
func (r *running) pause(t *testing.T) (seen bool) {
	t.Helper()
	r.signal(t, r.worker, syscall.SIGSTOP)
	enough := time.After(disconnectInterval + time.Second)
	for waiting := true; waiting; {
		select {
		case line := <-r.lines:
			seen, waiting = line == "disconnect "+disconnected, line != "disconnect "+disconnected
		case <-enough:
			waiting = false
		}
	}
	r.signal(t, r.worker, syscall.SIGCONT)
	r.signal(t, r.cmd.Process.Pid, syscall.SIGHUP)
	r.waitLine(t, "got hangup", "worker")
	return seen
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	for _, last := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		r := start(t, limits{}, "serve")
		r.waitLine(t, "serving")
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, last} {
			r.signal(t, r.cmd.Process.Pid, s)
			r.waitLine(t, "got "+s.String())
		}
		r.wantStatus(t, 0)
	}
}

// A worker that ignores SIGTERM is killed and not restarted.
func TestWorkerIgnoresTerm(t *testing.T) {
	t.Parallel()
	r := start(t, limits{StopTimeout: quick}, "ignore-term", "serve")
	r.waitLine(t, "serving")
	r.signal(t, r.cmd.Process.Pid, syscall.SIGTERM)
	r.waitLine(t, "disconnect", "worker 1")
	r.wantStatus(t, 128+int(syscall.SIGKILL))
}

func TestOrphanedWorker(t *testing.T) {
	t.Parallel()
	r := start(t, limits{}, "serve")
	who := strings.Fields(r.waitLine(t, "worker 0 serve"))
	if want := strconv.Itoa(r.cmd.Process.Pid); who[1] != want {
		t.Errorf("PID %s, want the supervisor's %s", who[1], want)
	}
	r.waitLine(t, "serving")
	r.signal(t, r.cmd.Process.Pid, syscall.SIGKILL)
	r.waitLine(t, "orphaned")
}

// The supervisor reaps orphans.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	r := start(t, limits{}, "fork")
	pid := r.waitLine(t, "orphan ")
	r.waitLine(t, "serving")
	timeout := time.After(hangTimeout)
	tick := time.NewTicker(10 * ms)
	defer tick.Stop()
	for {
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("process %s still exists", pid)
		}
	}
}

func TestOOMKillsWorker(t *testing.T) {
	t.Parallel()
	r := start(t, limits{}, "serve")
	r.waitLine(t, "worker 0")
	r.waitLine(t, "serving")
	score := func(pid int) int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	own, supervisor := score(os.Getpid()), score(r.cmd.Process.Pid)
	worker := score(r.worker)
	for deadline := time.Now().Add(hangTimeout); worker == supervisor && time.Now().Before(deadline); {
		time.Sleep(ms) // it may serve before its score is set
		worker = score(r.worker)
	}
	if supervisor >= worker || worker < own {
		t.Errorf("oom_score_adj of the supervisor %d, of the worker %d, of the test %d", supervisor, worker, own)
	}
}

func TestWithoutSupervisor(t *testing.T) {
	h, err := Attach(func(string) string { return "" })
	if h != nil || err != nil {
		t.Fatalf("attached to %v, %v", h, err)
	}
	if err := h.Send(testReport); err != nil {
		t.Error(err)
	}
	if h.PID() != os.Getpid() {
		t.Errorf("PID %d, want %d", h.PID(), os.Getpid())
	}
	select {
	case <-h.Orphaned():
		t.Error("orphaned without a supervisor")
	default:
	}
	if _, err := Attach(func(string) string { return "999" }); err == nil {
		t.Error("attached to a closed descriptor")
	}
}

func TestNoProgram(t *testing.T) {
	_, err := startWorker(Program{Path: "/nonexistent/nodens"}, false, os.Stderr, nil)
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/nodens") {
		t.Errorf("error %v", err)
	}
}

// A heartbeat to a supervisor that has ended is lost without an error, whether or
// not it left heartbeats unread.
func TestHeartbeatAfterSupervisorEnded(t *testing.T) {
	for unread := range 2 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		h := &Heartbeat{sock: os.NewFile(uintptr(fds[1]), "supervisor")} // waitEnd does not run: Send gets the error
		for range unread {
			if err := h.Send(testReport); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Close(fds[0]); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := h.Send(testReport); err != nil {
				t.Errorf("%d unread: %v", unread, err)
			}
		}
		_ = h.sock.Close()
	}
}
