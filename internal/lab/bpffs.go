package lab

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// BPFFS is where OwnBPFFS mounts.
const BPFFS = "/sys/fs/bpf"

const envMounted = "NODENS_LAB_BPFFS"

// OwnBPFFS is for TestMain: it starts the test binary again in a mount namespace
// with a BPF file system of its own, where it may. What the tests pin goes when
// they end, however they end.
func OwnBPFFS() {
	if os.Geteuid() != 0 || os.Getenv(envMounted) != "" {
		return
	}
	if err := reexecMounted(); err != nil {
		fmt.Fprintln(os.Stderr, "no BPF file system of our own:", err)
	}
}

// reexecMounted does not return unless it fails.
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

// NeedBPF skips the test where programs cannot be loaded or pinned.
func NeedBPF(t testing.TB) {
	t.Helper()
	NeedRoot(t)
	if os.Getenv(envMounted) == "" {
		Skip(t, "needs a mount namespace with a BPF file system")
	}
}
