package supervise

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// worker is one run of the program. Only the supervisor's loop uses it. The loop
// also reaps it, so the PID is not reused before.
type worker struct {
	pid      int
	sock     *os.File
	started  time.Time
	watchdog watchdog
	// starvation is measured from the first timeout after a heartbeat.
	starvation starvation
	report     Report
	text       []byte // encoded report

	// The worker has ended when it is reaped and all its messages are read.
	reaped, closed bool
	status         unix.WaitStatus
}

// workerDescriptor is the file descriptor of the worker's end of the socket pair
// in the worker.
const workerDescriptor = 3

// newShared makes the file of Heartbeat.Shared, in memory.
func newShared() (*os.File, error) {
	fd, err := unix.MemfdCreate("nodens", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("nodens", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "shared"), nil
}

// startWorker starts the program and sends its messages to into until it ends. again:
// this supervisor has started a worker before.
func startWorker(p Program, again bool, shared *os.File, into chan<- message) (*worker, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	sock := os.NewFile(uintptr(fds[0]), "worker")
	env := append(without(without(p.Env, envDescriptor), envRestarted), envDescriptor+"="+strconv.Itoa(workerDescriptor))
	if again {
		env = append(env, envRestarted+"=1")
	}
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2, workerDescriptor: uintptr(fds[1]), shared.Fd()},
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

// message is a heartbeat or the end of messages.
type message struct {
	from *worker
	text []byte // nil: the end
}

// receive returns when either end of the socket pair is closed.
func (w *worker) receive(into chan<- message) {
	defer func() { into <- message{from: w} }()
	raw, err := w.sock.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, maxReport)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			// A raw call: it does not block, and calls that the runtime tracks wake its monitor.
			n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), maxReport)
			switch {
			case errno == unix.EINTR:
			case errno == unix.EAGAIN:
				return false
			case errno != 0 || n == 0:
				return true
			default:
				into <- message{w, append([]byte(nil), buf[:n]...)}
			}
		}
	})
}

func (w *worker) signal(s syscall.Signal) error {
	return os.NewSyscallError("kill", unix.Kill(w.pid, s))
}
