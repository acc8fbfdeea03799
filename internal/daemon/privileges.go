package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capabilities is a set of capabilities(7), a bit for each.
type capabilities uint64

func (c capabilities) String() string {
	var names []string
	for bit, name := range map[int]string{
		unix.CAP_NET_BIND_SERVICE: "NET_BIND_SERVICE", unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_BPF: "BPF",
		unix.CAP_PERFMON: "PERFMON", unix.CAP_SYS_ADMIN: "SYS_ADMIN", unix.CAP_SYS_PTRACE: "SYS_PTRACE",
		unix.CAP_SYS_RESOURCE: "SYS_RESOURCE",
	} {
		if c&capability(bit) != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func capability(bits ...int) (c capabilities) {
	for _, b := range bits {
		c |= 1 << b
	}
	return c
}

// neededCapabilities returns what a daemon needs after its start. It may open ports
// below 1024 at a reload. With hostSetup it repairs and removes addresses and
// rules, or attaches the fast path to interfaces. With redirection it manages BPF
// programs, enters the network namespaces of pods and resets their sockets.
func neededCapabilities(hostSetup, redirection bool) capabilities {
	c := capability(unix.CAP_NET_BIND_SERVICE)
	if hostSetup {
		c |= capability(unix.CAP_NET_ADMIN)
	}
	if redirection {
		c |= capability(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN,
			unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE)
	}
	return c
}

// dropPrivileges permanently drops all capabilities except needed.
func dropPrivileges(needed capabilities, log *slog.Logger) error {
	kept, err := confine(needed)
	if errors.Is(err, errCgo) {
		log.Warn("privileges are kept", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w; set -keep-privileges to start without this", err)
	}
	log.Info("privileges dropped", "capabilities", kept)
	return nil
}

// errCgo: Go can change the credentials of all threads only in programs without C.
// A release build is one.
var errCgo = errors.New("the binary was built with cgo")

// confine drops the capabilities that are not in keep from all threads of the
// process, and prevents the process from gaining any. It returns the remaining ones.
func confine(keep capabilities) (capabilities, error) {
	have, err := permitted()
	if err != nil {
		return 0, err
	}
	if err := allThreads("prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return 0, err
	}
	if err := allThreads("prctl(PR_CAP_AMBIENT)", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return 0, err
	}
	left := keep & have
	hdr := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := &[2]unix.CapUserData{
		{Effective: uint32(left), Permitted: uint32(left)},
		{Effective: uint32(left >> 32), Permitted: uint32(left >> 32)},
	}
	err = allThreads("capset", unix.SYS_CAPSET, uintptr(unsafe.Pointer(hdr)), uintptr(unsafe.Pointer(data)))
	runtime.KeepAlive(hdr)
	runtime.KeepAlive(data)
	return left, err
}

// permitted returns the capabilities that the process may make effective.
func permitted() (capabilities, error) {
	hdr := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("capget: %w", err)
	}
	return capabilities(data[0].Permitted) | capabilities(data[1].Permitted)<<32, nil
}

// allThreads makes a system call, which affects only its own thread, on all threads.
func allThreads(what string, trap, a1, a2 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(trap, a1, a2, 0, 0, 0, 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errCgo
	}
	return fmt.Errorf("%s: %w", what, errno)
}
