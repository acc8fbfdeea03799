package bpf

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	envRole    = "NODENS_BPF_TEST_ROLE"
	envMounted = "NODENS_BPF_TEST_MOUNTED"
	testBPFFS  = "/sys/fs/bpf"
)

// TestMain plays a role where a test started this binary as a client or a
// daemon. Else it puts the tests, if they may, into a mount namespace with a BPF
// file system of its own: what they pin goes when they end, however they end.
func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
	case "agent":
		agentMain()
		return
	case "daemon":
		daemonMain()
		return
	case "capabilities":
		capabilitiesMain()
		return
	default:
		panic("no role " + role)
	}
	if os.Geteuid() == 0 && os.Getenv(envMounted) == "" {
		if err := reexecMounted(); err != nil {
			fmt.Fprintln(os.Stderr, "no BPF file system of our own:", err)
		}
	}
	os.Exit(m.Run())
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
	if err := unix.Mount("bpf", testBPFFS, "bpf", 0, ""); err != nil {
		return os.NewSyscallError("mount bpf", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), envMounted+"=1"))
}

// skip skips the test, or fails it where CI must run everything it can.
func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("under CI this must run: " + reason)
	}
	t.Skip(reason)
}

// needKernel skips a test that attaches programs where that is not possible.
func needKernel(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root to load programs")
	}
	if os.Getenv(envMounted) == "" {
		skip(t, "needs a mount namespace with a BPF file system")
	}
}
