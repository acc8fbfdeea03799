package supervise

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// worker is one run of the program. Its methods are called by the supervisor's
// loop only, which is also who waits for it: its PID is not reused before.
type worker struct {
	pid     int
	sock    *os.File
	started time.Time
	silence silence
	report  Report
	text    []byte // that report was decoded from

	// The end has come when it was waited for and all it said was read.
	reaped, closed bool
	status         unix.WaitStatus
}

// workerDescriptor is what the worker's end is in the worker, after the three of
// standard.
const workerDescriptor = 3

// startWorker starts the program; messages of it go to into until it ends.
func startWorker(p Program, into chan<- message) (*worker, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	sock := os.NewFile(uintptr(fds[0]), "worker")
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Env:   append(without(p.Env, envDescriptor), envDescriptor+"="+strconv.Itoa(workerDescriptor)),
		Files: []uintptr{0, 1, 2, workerDescriptor: uintptr(fds[1])},
	})
	_ = unix.Close(fds[1])
	if err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("start worker %s: %w", p.Path, err)
	}
	w := &worker{pid: pid, sock: sock, started: time.Now()}
	go w.receive(into)
	return w, nil
}

func without(env []string, name string) []string {
	var rest []string
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			rest = append(rest, v)
		}
	}
	return rest
}

// message is a beat, or that there will be no more.
type message struct {
	from *worker
	text []byte // nil: no more
}

// receive ends when the worker's end is closed, or sock is.
func (w *worker) receive(into chan<- message) {
	buf := make([]byte, maxReport)
	for {
		n, err := w.sock.Read(buf)
		if err != nil || n == 0 {
			into <- message{from: w}
			return
		}
		into <- message{w, append([]byte(nil), buf[:n]...)}
	}
}

func (w *worker) signal(s syscall.Signal) error {
	return os.NewSyscallError("kill", unix.Kill(w.pid, s))
}
