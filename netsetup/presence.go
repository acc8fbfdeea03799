package netsetup

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// presenceName is the abstract unix address that a generation holds for as long
// as it wants an object: "addresses", "rules" or "accepts". Abstract names are per network
// namespace, and the kernel drops one however its process ends.
func presenceName(object string, m addrMark) string {
	return fmt.Sprintf("@%s-%s-%06x", tableName, object, uint32(m)&0xffffff)
}

// announce holds the name until withdraw or Close. Without it the set-up works,
// but a newer process that ends first will not hand it back: so a failure is
// only logged. A name that is taken is one of the same digest, and as good.
func (h *Host) announce(object string) {
	if _, ok := h.present[object]; ok {
		return
	}
	fd, err := h.unixSocket()
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: presenceName(object, markOf(h.cfg.Generation))})
		if err == nil {
			h.present[object] = fd
			return
		}
		_ = unix.Close(fd)
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		h.log.Warn("other processes cannot see this one", "object", object, "err", err)
	}
}

// withdraw gives the name up. Whoever is about to read a mark in order to
// decide whether to remove must do so first: see handedBack.
func (h *Host) withdraw(object string) {
	if fd, ok := h.present[object]; ok {
		delete(h.present, object)
		_ = unix.Close(fd)
	}
}

// isPresent says whether a process holds the name. Where that cannot be told,
// the answer is no.
func (h *Host) isPresent(object string, m addrMark) bool {
	fd, err := h.unixSocket()
	if err != nil {
		h.log.Warn("cannot look for another process", "object", object, "err", err)
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: presenceName(object, m)})
	// A security module may deny the connection, but only to what is there.
	return err == nil || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// endsWithin is how long a process that has withdrawn may take to remove its
// marks or to hand them back. Whose are there for longer was killed.
const endsWithin = 5 * time.Second

// absence is a generation that has marks and no process.
type absence struct {
	object string
	mark   addrMark
}

// holds says whether the generation of mark m keeps us from repairing: those of
// a process that was killed do not.
func (h *Host) holds(object string, m addrMark) bool {
	key := absence{object, m}
	if h.isPresent(object, m) {
		delete(h.absent, key)
		return true
	}
	since, known := h.absent[key]
	if !known {
		since = time.Now()
		h.absent[key] = since
	}
	if time.Since(since) < h.endsWithin {
		return true
	}
	delete(h.absent, key)
	return false
}

// heldBy returns generation if it holds, else "".
func (h *Host) heldBy(object, generation string) string {
	if generation == "" || !h.holds(object, markOf(generation)) {
		return ""
	}
	return generation
}

// unixSocket makes a datagram socket, whose connection is nothing that the peer
// would have to accept, in the Host's namespace.
func (h *Host) unixSocket() (fd int, err error) {
	err = inNetNS(h.cfg.NetNS, func() error {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open unix socket: %w", err)
	}
	return fd, nil
}
