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

const patience = 30 * time.Second

// times are those after which something is done to a worker: quick where the
// test is about it, else never, on however slow a machine.
type times struct{ Start, Hung, Stop time.Duration }

const quick = 400 * ms

func (tm times) text(t *testing.T) string {
	t.Helper()
	for _, d := range []*time.Duration{&tm.Start, &tm.Hung, &tm.Stop} {
		if *d == 0 {
			*d = time.Hour
		}
	}
	text, err := json.Marshal(tm)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// running is a supervisor in a process of its own, and what it and its workers
// print.
type running struct {
	cmd    *exec.Cmd
	lines  chan string
	done   chan struct{}
	worker int // PID of the last that was seen
}

func start(t *testing.T, tm times, lives ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command("/proc/self/exe"), lines: make(chan string), done: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), envRole+"=supervisor", envDir+"="+t.TempDir(), envTimes+"="+tm.text(t),
		envLives+"="+strings.Join(lives, " "), "GORACE=atexit_sleep_ms=0")
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

// end leaves nobody behind, stopped workers neither.
func (r *running) end() {
	_ = r.cmd.Process.Kill()
	if r.worker > 0 {
		_ = syscall.Kill(r.worker, syscall.SIGCONT)
	}
	for range r.lines {
	}
	<-r.done
}

// await returns the rest of the next line that begins so. In between there may be
// others; those named in never fail the test.
func (r *running) await(t *testing.T, prefix string, never ...string) string {
	t.Helper()
	late := time.After(patience)
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
		case <-late:
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

// status waits for the supervisor's end.
func (r *running) status(t *testing.T) int {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, ok := <-r.lines:
			if !ok {
				<-r.done
				return r.cmd.ProcessState.ExitCode()
			}
		case <-late:
			t.Fatal("the supervisor does not end")
		}
	}
}

func (r *running) ends(t *testing.T, want int) {
	t.Helper()
	if got := r.status(t); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
}

const freed = "/kube pods [[fd00::2]:10053]"

// What ends before its first beat is not started again: its status is ours.
func TestEndBeforeFirstBeat(t *testing.T) {
	t.Parallel()
	start(t, times{}, "exit7").ends(t, 7)
	start(t, times{}, "crash", "exit7").ends(t, 7)
	start(t, times{Start: quick}, "mute").ends(t, 128+int(syscall.SIGKILL))
	start(t, times{}, "end").ends(t, 0)
}

// A death is followed by freeing who waits, and by the next worker.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, life := range []string{"crash", "crash7"} {
		r := start(t, times{}, life, life, "serve")
		r.await(t, "worker 0")
		if got := r.await(t, "free"); got != freed {
			t.Errorf("freed %q", got)
		}
		r.await(t, "worker 2 serve")
		r.await(t, "serving")
		r.signal(t, r.cmd.Process.Pid, syscall.SIGTERM)
		r.await(t, "got terminated")
		r.ends(t, 0)
	}
}

func TestKilledWorker(t *testing.T) {
	t.Parallel()
	r := start(t, times{}, "serve")
	r.await(t, "worker 0")
	r.await(t, "serving")
	first := r.worker
	r.signal(t, first, syscall.SIGKILL)
	r.await(t, "worker 1")
	if r.worker == first {
		t.Errorf("worker %d again", first)
	}
	r.await(t, "serving")
	r.signal(t, r.worker, syscall.SIGTERM) // by somebody else: the end
	r.ends(t, 0)
}

// A hung worker is gone when the next one starts.
func TestHang(t *testing.T) {
	t.Parallel()
	r := start(t, times{Hung: quick}, "stop", "exit7")
	r.await(t, "worker 0")
	hung := r.worker
	r.await(t, "free", "worker 1") // when it falls silent
	r.await(t, "worker 1 exit7")
	if err := syscall.Kill(hung, 0); err != syscall.ESRCH {
		t.Errorf("the hung worker is still there: %v", err)
	}
	r.ends(t, 7)
}

// One that was only stopped for a while goes on; who waited was freed.
func TestStoppedForAWhile(t *testing.T) {
	t.Parallel()
	r := start(t, times{}, "serve", "exit7")
	r.await(t, "serving")
	for range 3 {
		for late := time.Now().Add(patience); !r.stopAndGoOn(t); {
			if time.Now().After(late) {
				t.Fatal("nobody was freed")
			}
		}
	}
}

// stopAndGoOn reports whether who waited was freed while the worker was stopped. On a
// slow machine that may have been before, and is once a silence.
func (r *running) stopAndGoOn(t *testing.T) (seen bool) {
	t.Helper()
	r.signal(t, r.worker, syscall.SIGSTOP)
	enough := time.After(between + time.Second)
	for waiting := true; waiting; {
		select {
		case line := <-r.lines:
			seen, waiting = line == "free "+freed, line != "free "+freed
		case <-enough:
			waiting = false
		}
	}
	r.signal(t, r.worker, syscall.SIGCONT)
	r.signal(t, r.cmd.Process.Pid, syscall.SIGHUP)
	r.await(t, "got hangup", "worker")
	return seen
}

func TestSignalsAreHandedOn(t *testing.T) {
	t.Parallel()
	for _, last := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		r := start(t, times{}, "serve")
		r.await(t, "serving")
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, last} {
			r.signal(t, r.cmd.Process.Pid, s)
			r.await(t, "got "+s.String())
		}
		r.ends(t, 0)
	}
}

// A worker that does not end when it is told to is killed; there is no next one.
func TestDeafWorker(t *testing.T) {
	t.Parallel()
	r := start(t, times{Stop: quick}, "deaf", "serve")
	r.await(t, "serving")
	r.signal(t, r.cmd.Process.Pid, syscall.SIGTERM)
	r.await(t, "free", "worker 1")
	r.ends(t, 128+int(syscall.SIGKILL))
}

func TestOrphanedWorkerIsTold(t *testing.T) {
	t.Parallel()
	r := start(t, times{}, "serve")
	who := strings.Fields(r.await(t, "worker 0 serve"))
	if want := strconv.Itoa(r.cmd.Process.Pid); who[1] != want {
		t.Errorf("the worker stands for PID %s, want %s", who[1], want)
	}
	r.await(t, "serving")
	r.signal(t, r.cmd.Process.Pid, syscall.SIGKILL)
	r.await(t, "orphaned")
}

// Zombies that fall to the supervisor are waited for.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	r := start(t, times{}, "fork")
	pid := r.await(t, "orphan ")
	r.await(t, "serving")
	late := time.After(patience)
	tick := time.NewTicker(10 * ms)
	defer tick.Stop()
	for {
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("process %s is still there", pid)
		}
	}
}

func TestOOMChoosesTheWorker(t *testing.T) {
	t.Parallel()
	r := start(t, times{}, "serve")
	r.await(t, "worker 0")
	r.await(t, "serving")
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
	for late := time.Now().Add(patience); worker == supervisor && time.Now().Before(late); {
		time.Sleep(ms) // it may serve before it is given its own
		worker = score(r.worker)
	}
	if supervisor >= worker || worker < own {
		t.Errorf("oom_score_adj of the supervisor %d, of the worker %d, of who started it %d", supervisor, worker, own)
	}
}

func TestWithoutSupervisor(t *testing.T) {
	b, err := Attach(func(string) string { return "" })
	if b != nil || err != nil {
		t.Fatalf("attached to %v, %v", b, err)
	}
	if err := b.Beat(testReport); err != nil {
		t.Error(err)
	}
	if b.PID() != os.Getpid() {
		t.Errorf("stands for PID %d, want %d", b.PID(), os.Getpid())
	}
	select {
	case <-b.Orphaned():
		t.Error("orphaned of nobody")
	default:
	}
	if _, err := Attach(func(string) string { return "999" }); err == nil {
		t.Error("attached to a descriptor that is not open")
	}
}

func TestNoProgram(t *testing.T) {
	_, err := startWorker(Program{Path: "/nonexistent/nodens"}, nil)
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/nodens") {
		t.Errorf("error %v", err)
	}
}

// A beat to a supervisor that has ended, with or without beats that it has not read,
// is lost.
func TestBeatIntoTheVoid(t *testing.T) {
	for unread := range 2 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := &Beats{sock: os.NewFile(uintptr(fds[1]), "supervisor")} // nobody reads: the error is for Beat
		for range unread {
			if err := b.Beat(testReport); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Close(fds[0]); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Beat(testReport); err != nil {
				t.Errorf("%d unread: %v", unread, err)
			}
		}
		_ = b.sock.Close()
	}
}
