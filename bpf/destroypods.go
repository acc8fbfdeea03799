package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DestroyPodSockets is DestroySockets in the network namespace of every pod: of
// every process below the cgroup kubepods, as the proc file system proc shows it,
// but the caller's own. It goes on after a namespace that fails. The process must
// see the pods' processes (hostPID) and needs CAP_SYS_ADMIN and CAP_SYS_PTRACE to
// enter their namespaces.
func DestroyPodSockets(kubepods, proc string, peer netip.AddrPort) (int, error) {
	own, _, err := inode(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return 0, fmt.Errorf("destroy sockets of pods: %w", err)
	}
	seen := map[uint64]bool{own: true}
	destroyed := 0
	var errs []error
	err = eachProcess(kubepods, func(pid string) {
		n, err := destroyOnce(seen, filepath.Join(proc, pid, "ns/net"), peer)
		destroyed += n
		errs = append(errs, err)
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return destroyed, fmt.Errorf("destroy sockets of pods: %w", err)
	}
	return destroyed, nil
}

// destroyOnce passes over namespaces that were seen and processes that ended.
func destroyOnce(seen map[uint64]bool, path string, peer netip.AddrPort) (int, error) {
	netns, err := os.Open(path)
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer netns.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if seen[st.Ino] {
		return 0, nil
	}
	seen[st.Ino] = true
	return DestroySockets(netns, peer)
}

// eachProcess calls f for all processes of a cgroup and of those below it, as
// they come and go.
func eachProcess(cgroup string, f func(pid string)) error {
	return filepath.WalkDir(cgroup, func(dir string, d fs.DirEntry, err error) error {
		if isGone(err) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if isGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(list)) {
			if pid == "0" {
				return fmt.Errorf("%s: processes of another PID namespace: needs hostPID", dir)
			}
			f(pid)
		}
		return nil
	})
}

// isGone: a cgroup that was removed, or a process that ended, meanwhile.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}
