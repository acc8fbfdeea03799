// Package tick has timers, and a send, that wake an idle process as little as possible.
// For each of its own timers, Go's runtime wakes the thread that polls the network up to a
// millisecond early and once more in time, and meanwhile its monitor thread every 20
// microseconds or so. A timer of the kernel wakes one thread once.
package tick

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Timer sends on C when it expires, as time.Timer and time.Ticker do. Its methods are
// safe for concurrent use.
type Timer struct {
	C <-chan struct{}

	mu   sync.Mutex // guards what follows, and the expiry
	c    chan struct{}
	file *os.File // timerfd
	raw  syscall.RawConn

	spare *time.Timer // used if file is nil: the kernel refused a timerfd
	sets  int         // calls of set; -1 after Stop
}

// New returns a timer that does not run. The caller must call Stop.
func New() *Timer {
	c := make(chan struct{}, 1)
	t := &Timer{C: c, c: c}
	if t.open() != nil { // for lack of descriptors or memory
		return newSpare()
	}
	go t.run()
	return t
}

// newSpare returns a Timer that uses one of the runtime.
func newSpare() *Timer {
	c := make(chan struct{}, 1)
	return &Timer{C: c, c: c, spare: time.NewTimer(time.Hour)}
}

// Every returns a timer that expires at every multiple of interval on the monotonic
// clock, so that timers whose intervals divide each other expire together.
func Every(interval time.Duration) *Timer {
	t := New()
	t.Align(interval)
	return t
}

// Call calls f at each expiry of Every(interval), until ctx is done.
func Call(ctx context.Context, interval time.Duration, f func()) {
	t := Every(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// Send sends a message over a connected socket and does not wait. If the buffer is full,
// the error wraps EAGAIN. It is a raw system call, because calls that the runtime tracks
// wake its monitor thread.
func Send(conn syscall.RawConn, b []byte) error {
	var errno syscall.Errno
	err := conn.Control(func(fd uintptr) {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("sendto", errno)
	}
	return err
}

func (t *Timer) open() error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return err
	}
	t.file = os.NewFile(uintptr(fd), "timer")
	if err = t.file.SetReadDeadline(time.Time{}); err == nil { // fails if epoll refused it: run would end
		t.raw, err = t.file.SyscallConn()
	}
	if err != nil {
		_ = t.file.Close()
	}
	return err
}

// run sends the expiries until the file is closed.
func (t *Timer) run() {
	defer close(t.c)
	_ = t.raw.Read(func(fd uintptr) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		var count uint64
		// A raw call: it does not block, and calls that the runtime tracks wake its monitor.
		if n, _, _ := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&count)), 8); n == 8 {
			t.send()
		}
		return false
	})
}

// send needs mu.
func (t *Timer) send() {
	select {
	case t.c <- struct{}{}:
	default:
	}
}

// expireSpare does nothing after a later call of set.
func (t *Timer) expireSpare(set int, interval time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if set != t.sets {
		return
	}
	t.send()
	if interval > 0 {
		t.spare = time.AfterFunc(interval, func() { t.expireSpare(set, interval) })
	}
}

// Reset makes the timer expire once, after d. C has no earlier expiry afterwards.
func (t *Timer) Reset(d time.Duration) { t.set(max(d, 1), 0, 0) }

// Align makes the timer expire at every multiple of interval, see Every.
func (t *Timer) Align(interval time.Duration) {
	t.set(next(interval), interval, unix.TFD_TIMER_ABSTIME)
}

// Halt stops the timer. Reset and Align start it again.
func (t *Timer) Halt() { t.set(0, 0, 0) }

// Until returns the time until the next multiple of interval on the monotonic clock: more
// than 0 and at most interval.
func Until(interval time.Duration) time.Duration {
	at := time.Duration(now())
	return at.Truncate(interval) + interval - at
}

// next returns the next multiple of interval on the monotonic clock.
func next(interval time.Duration) time.Duration {
	return time.Duration(now()).Truncate(interval) + interval
}

// now returns the monotonic clock in nanoseconds.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for an unknown clock
	return ts.Nano()
}

// set makes the timer expire after first, or with the flag TFD_TIMER_ABSTIME at that time
// of the monotonic clock, and then every interval. 0 is never.
func (t *Timer) set(first, interval time.Duration, flags uintptr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.c:
	default:
	}
	if t.file == nil {
		t.setSpare(first, interval, flags)
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(first)), Interval: unix.NsecToTimespec(int64(interval))}
	_ = t.raw.Control(func(fd uintptr) {
		_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, flags, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
}

// setSpare is set without a timer of the kernel. It needs mu.
func (t *Timer) setSpare(first, interval time.Duration, flags uintptr) {
	t.spare.Stop()
	if t.sets < 0 {
		return
	}
	t.sets++
	if first == 0 {
		return
	}
	if flags&unix.TFD_TIMER_ABSTIME != 0 {
		first -= time.Duration(now())
	}
	set := t.sets
	t.spare = time.AfterFunc(first, func() { t.expireSpare(set, interval) })
}

// Stop frees the timer and closes C. The timer cannot be used afterwards.
func (t *Timer) Stop() {
	if t.file != nil {
		_ = t.file.Close() // ends run
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare.Stop()
	if t.sets >= 0 {
		t.sets = -1
		close(t.c)
	}
}
