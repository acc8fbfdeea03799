package kill

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// daemon is a supervisor and its workers.
type daemon struct {
	*lab.Process
	program *lab.Program
}

// redirected is what a worker logs once sockets are redirected to it.
const redirected = "sockets are redirected"

// start starts nodens in the memory cgroup and waits until pods are redirected
// to it.
func (n *node) start(t *testing.T, m *lab.Memory) *daemon {
	t.Helper()
	return n.startProgram(t, m, nodens)
}

// startProgram is start for another build of nodens.
func (n *node) startProgram(t *testing.T, m *lab.Memory, p *lab.Program) *daemon {
	t.Helper()
	d := n.launch(t, m, p)
	d.Err.WaitFor(t, 0, redirected)
	d.Out.WaitFor(t, 0, ` listens on `)
	return d
}

// launch is startProgram without waiting.
func (n *node) launch(t *testing.T, m *lab.Memory, p *lab.Program) *daemon {
	t.Helper()
	args := append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, m.Dir}, n.confine...)
	d := &daemon{program: p, Process: lab.Command{Netns: n.Netns, Args: append(args, p.Path(t),
		"-conf", n.conf, "-localip", vip, "-metrics-listen-address", "0", "-node-ip", lab.NodeIP, "-kubepods", n.kubepods, "-redirect-pin-dir", n.pinDir,
		"-cache-snapshot", n.snapshot, "-supervise",
	)}.Start(t)}
	t.Cleanup(func() { d.finish(t) })
	return d
}

// finish ends all processes and checks the log.
func (d *daemon) finish(t *testing.T) {
	select {
	case <-d.Done():
	default:
		if pid := d.child(); pid > 0 {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		d.stop(t)
	}
	(&lab.Daemon{Process: d.Process}).CheckLog(t)
	if t.Failed() {
		t.Logf("log of nodens:\n%s", d.Err.Text())
	}
}

// stop ends the daemon by SIGTERM.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("nodens ended with status %d after SIGTERM", status)
	}
}

// worker returns the PID of the supervisor's only child. It waits while there is
// none: on a slow machine the supervisor may have killed a silent worker.
func (d *daemon) worker(t *testing.T) int {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(lab.QueryTimeout)
	for {
		if pid := d.child(); pid > 0 {
			return pid
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("no worker")
		}
	}
}

// child returns the PID of the supervisor's only child, 0 if there is none.
func (d *daemon) child() int {
	parent := fmt.Sprintf("\nPPid:\t%d\n", d.PID())
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && bytes.Contains(text, []byte(parent)) && !bytes.Contains(text, []byte("\nState:\tZ")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	return 0
}

// signal sends a signal to the worker.
func (d *daemon) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	pid := d.worker(t)
	if err := unix.Kill(pid, s); err != nil {
		t.Fatalf("signal %v to worker %d: %v", s, pid, err)
	}
}

// memoryOf returns the resident memory of a process in KiB, and the anonymous part.
func memoryOf(t *testing.T, pid int) (resident, anonymous int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &resident)
		_, _ = fmt.Sscanf(line, "RssAnon: %d", &anonymous)
	}
	return resident, anonymous
}

// marks are positions in the output and in the log.
type marks struct{ out, err int }

func (d *daemon) mark() marks { return marks{d.Out.Mark(), d.Err.Mark()} }

// waitForRedirected waits for a worker after mark to which sockets are redirected and
// which has reported to the supervisor. The supervisor does not restart a worker
// that never reported.
func (d *daemon) waitForRedirected(t *testing.T, mark marks) {
	t.Helper()
	d.Err.WaitFor(t, mark.err, redirected)
	d.Out.WaitFor(t, mark.out, ` listens on `)
}

// pause waits for a time that is part of a fault.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
