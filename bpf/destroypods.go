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
	destroyed := 0
	var errs []error
	err := eachNetwork(kubepods, proc, func(netns *os.File) bool {
		n, err := DestroySockets(netns, peer)
		destroyed += n
		errs = append(errs, err)
		return true
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return destroyed, fmt.Errorf("destroy sockets of pods: %w", err)
	}
	return destroyed, nil
}

// PodNetworks calls f with the network namespace of every pod, each once, until f
// returns false: as DestroyPodSockets finds them, and with the same needs. The file
// is closed after the call.
func PodNetworks(kubepods, proc string, f func(netns *os.File) bool) error {
	if err := eachNetwork(kubepods, proc, f); err != nil {
		return fmt.Errorf("network namespaces of pods: %w", err)
	}
	return nil
}

// errEnough ends a walk.
var errEnough = errors.New("enough")

// eachNetwork goes on after a namespace that cannot be opened.
func eachNetwork(kubepods, proc string, f func(netns *os.File) bool) error {
	own, _, err := inode(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	seen := map[uint64]bool{own: true}
	var errs []error
	err = eachProcess(kubepods, func(pid string) error {
		goOn, err := openOnce(seen, filepath.Join(proc, pid, "ns/net"), f)
		errs = append(errs, err)
		if !goOn {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(append(errs, err)...)
}

// openOnce passes over namespaces that were seen and processes that ended.
func openOnce(seen map[uint64]bool, path string, f func(netns *os.File) bool) (goOn bool, err error) {
	netns, err := os.Open(path)
	if isGone(err) {
		return true, nil
	}
	if err != nil {
		return true, err
	}
	defer netns.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &st); err != nil {
		return true, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if seen[st.Ino] {
		return true, nil
	}
	seen[st.Ino] = true
	return f(netns), nil
}

// eachProcess calls f for all processes of a cgroup and of those below it, as
// they come and go; an error of f ends it.
func eachProcess(cgroup string, f func(pid string) error) error {
	return filepath.WalkDir(cgroup, func(dir string, d fs.DirEntry, err error) error {
		if isGone(err) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if isGone(err) || errors.Is(err, unix.EOPNOTSUPP) { // of a threaded one, all are above
			return nil
		}
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(list)) {
			if pid == "0" {
				return fmt.Errorf("%s: processes of another PID namespace: needs hostPID", dir)
			}
			if err := f(pid); err != nil {
				return err
			}
		}
		return nil
	})
}

// isGone: a cgroup that was removed, or a process that ended, meanwhile.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}
