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

// DestroyPodSockets destroys the sockets that are connected to peer, or connect to it, in
// the network namespaces of the pods, except the caller's own. kubepods is the cgroup
// directory of all pods, proc a mounted proc file system. It returns the number of sockets.
// The next system call on such a socket fails with ECONNABORTED, so that a resolver retries
// at once. After a failure it continues with the next namespace. The process must see the
// pods' processes (hostPID), and needs CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_SYS_PTRACE.
// Without CONFIG_INET_DIAG_DESTROY or udp_diag in the kernel, the error wraps ErrKernel.
func DestroyPodSockets(kubepods, proc string, peer netip.AddrPort, protocols ...Protocol) (int, error) {
	destroyed := 0
	var errs []error
	err := eachNetwork(kubepods, proc, func(netns *os.File) bool {
		n, err := destroySockets(netns, peer, protocols...)
		destroyed += n
		errs = append(errs, err)
		return true
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return destroyed, fmt.Errorf("destroy sockets of pods: %w", err)
	}
	return destroyed, nil
}

// PodNetworks calls f once for the network namespace of every pod, until f returns
// false. It finds them as DestroyPodSockets does and needs the same. It closes the
// file after the call.
func PodNetworks(kubepods, proc string, f func(netns *os.File) bool) error {
	if err := eachNetwork(kubepods, proc, f); err != nil {
		return fmt.Errorf("network namespaces of pods: %w", err)
	}
	return nil
}

// eachNetwork continues after a namespace that it cannot open.
func eachNetwork(kubepods, proc string, f func(netns *os.File) bool) error {
	own, _, err := inode(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	seen := map[uint64]bool{own: true}
	var errs []error
	err = eachProcess(kubepods, func(pid string) error {
		more, err := openOnce(seen, filepath.Join(proc, pid, "ns/net"), f)
		errs = append(errs, err)
		if !more {
			return fs.SkipAll
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// openOnce calls f for the namespace at path, unless it was seen before or its process
// has ended.
func openOnce(seen map[uint64]bool, path string, f func(netns *os.File) bool) (more bool, err error) {
	netns, err := os.Open(path)
	if errors.Is(err, os.ErrPermission) { // also for an ending process (fs/proc/namespaces.c, proc_ns_get_link)
		if _, gone := os.Stat(filepath.Dir(path)); gone != nil {
			err = gone
		}
	}
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

// eachProcess calls f for the processes of a cgroup and of those below it, until f
// returns an error. fs.SkipAll ends it without an error.
func eachProcess(cgroup string, f func(pid string) error) error {
	return filepath.WalkDir(cgroup, func(dir string, d fs.DirEntry, err error) error {
		if isGone(err) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if isGone(err) || errors.Is(err, unix.EOPNOTSUPP) { // a threaded cgroup: its processes are listed above
			return nil
		}
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(list)) {
			if pid == "0" {
				return errors.New("cannot see the processes of pods: needs hostPID")
			}
			if err := f(pid); err != nil {
				return err
			}
		}
		return nil
	})
}

// isGone reports whether err means that a cgroup was removed or a process ended.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}
