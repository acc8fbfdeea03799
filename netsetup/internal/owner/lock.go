package owner

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// lockAddress is the abstract unix address that a process binds while it
// changes the link or the addresses.
const lockAddress = "@nodens-addresses-turn"

// A change takes milliseconds; if the lock is held for longer, its process is
// stopped.
const (
	lockTimeout = 2 * time.Second
	lockRetry   = time.Millisecond
)

// Lock waits until no other process in the namespace changes the link or the
// addresses, and returns the function that releases the lock. Marks that are read
// under the lock stay valid until its release: the kernel has no operation that
// deletes an address or a link only if it carries a mark. Lock only logs a failure:
// without the lock, two processes interfere only if both change an object within
// microseconds.
func Lock(id Identity) (unlock func()) {
	fd, err := unixSocket(id.NetNS)
	if err != nil {
		id.Log.Warn("changes of addresses are not coordinated with other processes", "error", err)
		return func() {}
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockRetry) {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: lockAddress})
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		id.Log.Warn("changes of addresses are not coordinated with other processes", "error", err)
	}
	return func() { _ = unix.Close(fd) }
}
