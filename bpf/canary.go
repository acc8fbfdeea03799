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
