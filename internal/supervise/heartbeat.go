package supervise

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/tick"
)

// envDescriptor is the environment variable with the file descriptor of the
// worker's end of the socket pair. The next one is that of the shared file.
const envDescriptor = "NODENS_SUPERVISOR_FD"

// envRestarted is set for a worker that is not its supervisor's first.
const envRestarted = "NODENS_SUPERVISOR_RESTARTED"

// Heartbeat is the worker's end of the socket pair. It is nil in a process
// without a supervisor; its methods then do nothing.
type Heartbeat struct {
	sock      *os.File
	last      Report // encoded in text
	text      []byte
	orphaned  chan struct{}
	restarted bool
	shared    *os.File
}

// Attach finds the supervisor by the environment. It returns nil if there is
// none.
func Attach(getenv func(string) string) (*Heartbeat, error) {
	value := getenv(envDescriptor)
	if value == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd+1), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("attach to supervisor: %s=%s: %w", envDescriptor, value, err)
	}
	h := &Heartbeat{sock: os.NewFile(uintptr(fd), "supervisor"), orphaned: make(chan struct{}), restarted: getenv(envRestarted) != "", shared: os.NewFile(uintptr(fd+1), "shared")}
	go h.waitEnd()
	return h, nil
}

// waitEnd returns when the supervisor has ended. The supervisor sends nothing.
func (h *Heartbeat) waitEnd() {
	defer close(h.orphaned)
	for {
		if n, err := h.sock.Read(make([]byte, 1)); n == 0 || err != nil {
			return
		}
	}
}

// Orphaned is closed when the supervisor has ended.
func (h *Heartbeat) Orphaned() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.orphaned
}

// Restarted reports whether the supervisor had a worker before this process.
func (h *Heartbeat) Restarted() bool { return h != nil && h.restarted }

// Shared returns a file in memory that all workers of a supervisor use, one after the
// other. At first, it is empty. The workers share its offset. Without a supervisor, Shared
// returns nil.
func (h *Heartbeat) Shared() *os.File {
	if h == nil {
		return nil
	}
	return h.shared
}

// PID returns the PID of the supervisor, or of this process without one.
func (h *Heartbeat) PID() int {
	if h == nil {
		return os.Getpid()
	}
	return os.Getppid()
}

// Send reports that an answer has just come through the serving path. It never
// blocks: a heartbeat is lost if the supervisor's buffer is full. Not safe for
// concurrent use.
func (h *Heartbeat) Send(r Report) error {
	if h == nil {
		return nil
	}
	if h.text == nil || !equal(r, h.last) {
		text, err := r.encode()
		if err != nil {
			return fmt.Errorf("encode report to supervisor: %w", err)
		}
		h.last, h.text = r, text
	}
	conn, err := h.sock.SyscallConn()
	if err == nil {
		err = tick.Send(conn, h.text)
	}
	for _, lost := range []error{unix.EAGAIN, unix.EPIPE, unix.ECONNRESET} { // the last two: see Orphaned
		if errors.Is(err, lost) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("send heartbeat: %w", err)
	}
	return nil
}
