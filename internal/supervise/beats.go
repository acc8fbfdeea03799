package supervise

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// envDescriptor names the worker's end of the socket pair, in the environment.
const envDescriptor = "NODENS_SUPERVISOR_FD"

// Beats is the worker's end. Those of a process without a supervisor are nil,
// and their methods do nothing.
type Beats struct {
	sock *os.File
	last Report // of text
	text []byte
	gone chan struct{}
}

// Attach finds the supervisor, by the environment; nil is none.
func Attach(getenv func(string) string) (*Beats, error) {
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
	if err != nil {
		return nil, fmt.Errorf("attach to supervisor: %s=%s: %w", envDescriptor, value, err)
	}
	b := &Beats{sock: os.NewFile(uintptr(fd), "supervisor"), gone: make(chan struct{})}
	go b.awaitEnd()
	return b, nil
}

// awaitEnd ends with the process, or when the supervisor has ended: that never
// sends anything.
func (b *Beats) awaitEnd() {
	defer close(b.gone)
	for {
		if n, err := b.sock.Read(make([]byte, 1)); n == 0 || err != nil {
			return
		}
	}
}

// Orphaned is closed when the supervisor has ended.
func (b *Beats) Orphaned() <-chan struct{} {
	if b == nil {
		return nil
	}
	return b.gone
}

// PID is the process that stands for the program: the supervisor, or this one.
func (b *Beats) PID() int {
	if b == nil {
		return os.Getpid()
	}
	return os.Getppid()
}

// Beat says that an answer came through the serving path just now. It never
// blocks: a beat that the supervisor has no room for is lost. Not safe for
// concurrent use.
func (b *Beats) Beat(r Report) error {
	if b == nil {
		return nil
	}
	if b.text == nil || !equal(r, b.last) {
		text, err := r.encode()
		if err != nil {
			return fmt.Errorf("report to supervisor: %w", err)
		}
		b.last, b.text = r, text
	}
	var err error
	conn, cerr := b.sock.SyscallConn()
	if cerr != nil {
		return fmt.Errorf("beat: %w", cerr)
	}
	cerr = conn.Write(func(fd uintptr) bool {
		err = unix.Send(int(fd), b.text, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	for _, lost := range []error{unix.EAGAIN, unix.EPIPE, unix.ECONNRESET} { // the latter two: see Orphaned
		if errors.Is(err, lost) {
			err = nil
		}
	}
	if err := errors.Join(err, cerr); err != nil {
		return fmt.Errorf("beat: %w", err)
	}
	return nil
}
