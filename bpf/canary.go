package bpf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// canary is a UDP socket that nothing is sent to. A sockmap drops it when its
// last descriptor closes.
type canary struct {
	fd     int
	cookie uint64 // SO_COOKIE
}

// canaryDescriptor is above those of all connections, of which a process that is
// killed closes the highest first. The table of descriptors takes 8 bytes for each
// up to this.
const canaryDescriptor = 1<<14 - 1

// raise moves fd up to canaryDescriptor, or as near to it as the limit of the
// process allows.
func raise(fd int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fd, os.NewSyscallError("getrlimit", err)
	}
	at := int(min(limit.Cur, canaryDescriptor+1)) - 1
	for ; at > fd; at-- { // another Redirect's is at the top
		high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, at)
		if err == nil {
			return high, os.NewSyscallError("close", unix.Close(fd))
		}
		if err != unix.EMFILE && err != unix.EINVAL {
			return fd, os.NewSyscallError("fcntl", err)
		}
	}
	return fd, nil
}

func openCanary() (*canary, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open canary: %w", os.NewSyscallError("socket", err))
	}
	// A sockmap takes bound sockets only.
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open canary: %w", os.NewSyscallError("bind", err))
	}
	if fd, err = raise(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open canary: %w", err)
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open canary: %w", os.NewSyscallError("getsockopt", err))
	}
	return &canary{fd: fd, cookie: cookie}, nil
}

func (c *canary) close() error {
	return os.NewSyscallError("close canary", unix.Close(c.fd))
}
