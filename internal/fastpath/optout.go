package fastpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// newOptOut returns a function that reports whether the kernel may answer the pod
// with a network namespace, whose number is that of IFLA_LINK_NETNSID. If some pods opt
// out, it may not answer a pod whose name is not known.
func newOptOut(p Plan) (allowed func(netns int) bool, err error) {
	if len(p.OptOut) == 0 {
		return p.optOut(nil), nil
	}
	pods, err := podsByNetns(p)
	if err != nil {
		return nil, err
	}
	return p.optOut(pods), nil
}

// optOut is the function of newOptOut. pods are those of podsByNetns.
func (p Plan) optOut(pods map[int]config.PodName) (allowed func(netns int) bool) {
	return func(netns int) bool {
		pod := pods[netns]
		return len(p.OptOut) == 0 || pod.Name != "" && !slices.ContainsFunc(p.OptOut, func(n config.PodName) bool { return n.Covers(pod) })
	}
}

// podsByNetns returns the pods that have a process, by the number of their network
// namespaces (IFLA_LINK_NETNSID). The name of a pod without a directory of logs is empty.
func podsByNetns(p Plan) (byNetns map[int]config.PodName, err error) {
	kubepods := p.Kubepods
	if kubepods == "" {
		if kubepods, err = bpf.FindKubepods("/proc/self/mountinfo"); err != nil {
			return nil, err
		}
	}
	pods, err := redirect.Pods(kubepods, p.PodLogs)
	if err != nil {
		return nil, err
	}
	byNetns = make(map[int]config.PodName)
	for dir, pod := range pods {
		pid, err := firstPID(dir)
		if err != nil {
			return nil, err
		}
		id, known, err := netnsOf(pid)
		if err != nil {
			return nil, err
		}
		if known {
			byNetns[id] = pod
		}
	}
	return byNetns, nil
}

// netnsOf returns the number of a process's network namespace. It is unknown if the
// process has ended, and for 0.
func netnsOf(pid int) (id int, known bool, err error) {
	if pid == 0 {
		return 0, false, nil // no container yet
	}
	id, err = netlink.GetNetNsIdByPid(pid)
	if errors.Is(err, unix.ESRCH) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	return id, true, nil
}

// firstPID returns a process of a cgroup or one below it, 0 if there is none.
func firstPID(cgroup string) (pid int, err error) {
	err = filepath.WalkDir(cgroup, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for line := range strings.Lines(string(text)) {
			if pid, _ = strconv.Atoi(strings.TrimSpace(line)); pid > 0 {
				return fs.SkipAll
			}
		}
		return nil
	})
	return pid, err
}

// ignoreGone ignores that a cgroup has been removed.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // ENODEV: it was open
		return nil
	}
	return err
}
