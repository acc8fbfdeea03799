package lab

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// BPFFS is where OwnBPFFS mounts its file system.
const BPFFS = "/sys/fs/bpf"

const envMounted = "NODENS_LAB_BPFFS"

// OwnBPFFS starts the test binary again in a mount namespace with its own BPF
// file system, if it may. TestMain calls it. The kernel removes what the tests
// pin when they end.
func OwnBPFFS() {
	if os.Geteuid() != 0 || os.Getenv(envMounted) != "" {
		return
	}
	if err := reexecMounted(); err != nil {
		fmt.Fprintln(os.Stderr, "no own BPF file system:", err)
	}
}

// reexecMounted returns only if it fails.
func reexecMounted() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount private", err)
	}
	if err := unix.Mount("bpf", BPFFS, "bpf", 0, ""); err != nil {
		return os.NewSyscallError("mount bpf", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), envMounted+"=1"))
}

// NeedBPF skips the test if programs cannot be loaded or pinned.
func NeedBPF(t testing.TB) {
	t.Helper()
	NeedRoot(t)
	if os.Getenv(envMounted) == "" {
		Skip(t, "needs a mount namespace with a BPF file system")
	}
}
