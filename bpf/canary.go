package bpf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// canary is a UDP socket that receives nothing. The kernel removes it from a sockmap
// when its last file descriptor closes.
type canary struct {
	fd     int
	cookie uint64 // SO_COOKIE
}

// canaryDescriptor is higher than the file descriptors of all connections: the
// kernel closes those of a killed process from the highest down. The descriptor
// table takes 8 bytes for each descriptor up to this one.
const canaryDescriptor = 1<<14 - 1

// raise moves fd to canaryDescriptor, or as close to it as the process's limit
// allows.
func raise(fd int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fd, os.NewSyscallError("getrlimit", err)
	}
	at := int(min(limit.Cur, canaryDescriptor+1)) - 1
	for ; at > fd; at-- { // the highest may be taken by another Redirect
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
	// A sockmap accepts bound sockets only.
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
