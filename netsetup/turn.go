package netsetup

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// turnName is the abstract unix address that a process holds while it changes
// the link or the addresses.
const turnName = "@" + tableName + "-addresses-turn"

// How long another process's turn is waited for, and how often it is asked for.
// A turn takes milliseconds; one that takes longer is of a process that is
// stopped.
const (
	turnWait  = 2 * time.Second
	turnAgain = time.Millisecond
)

// takeTurn waits until no other process of the namespace changes the link or the
// addresses, and returns the function that lets the next one. What is read of
// marks in a turn holds until its end: the kernel cannot delete an address, or a
// link, only if it carries a mark. A turn that cannot be had is only logged, for
// without it two processes must meet within microseconds to do harm.
func (h *Host) takeTurn() (done func()) {
	fd, err := h.unixSocket()
	if err != nil {
		h.log.Warn("changes of addresses are not coordinated with other processes", "err", err)
		return func() {}
	}
	for late := time.Now().Add(turnWait); ; time.Sleep(turnAgain) {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: turnName})
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(late) {
			break
		}
	}
	if err != nil {
		h.log.Warn("changes of addresses are not coordinated with other processes", "err", err)
	}
	return func() { _ = unix.Close(fd) }
}
