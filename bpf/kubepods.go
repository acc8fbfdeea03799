package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kubepodsDepth is the number of levels below a mount at which FindKubepods searches.
// A node that is a container (kind) has kubepods below that container's cgroup and
// the kubelet's.
const kubepodsDepth = 4

// FindKubepods returns the cgroup v2 directory of all pods. mountinfo is a file in
// the format of /proc/self/mountinfo. It knows the names of the systemd and the
// cgroupfs driver. It searches a pure v2 hierarchy, the v2 part of a hybrid one, and
// a node that is a container. If there is none, or several at the same depth, it
// returns ErrNoKubepods, ErrCgroupV1 or ErrPodsInV1.
func FindKubepods(mountinfo string) (string, error) {
	mounts, err := cgroupMounts(mountinfo, "cgroup2")
	if err != nil {
		return "", fmt.Errorf("find kubepods: %w", err)
	}
	v1, err := cgroupMounts(mountinfo, "cgroup")
	switch {
	case err != nil:
		return "", fmt.Errorf("find kubepods: %w", err)
	case len(mounts) == 0 && len(v1) > 0:
		return "", fmt.Errorf("find kubepods: %w", ErrCgroupV1)
	case len(mounts) == 0:
		return "", fmt.Errorf("find kubepods: no cgroup hierarchy in %s, mount the host's /sys/fs/cgroup: %w", mountinfo, ErrNoKubepods)
	}
	for _, mount := range mounts {
		found, err := searchKubepods(mount)
		if err != nil {
			return "", fmt.Errorf("find kubepods: %w", err)
		}
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return "", fmt.Errorf("find kubepods: %s: %w", strings.Join(found, " and "), ErrNoKubepods)
		}
	}
	for _, mount := range v1 {
		if found, err := searchKubepods(mount); err == nil && len(found) > 0 {
			return "", fmt.Errorf("find kubepods: %w", ErrPodsInV1)
		}
	}
	return "", fmt.Errorf("find kubepods: none below %s: %w", strings.Join(mounts, ", "), ErrNoKubepods)
}

// cgroupMounts returns the mount points of a type in proc_pid_mountinfo(5), in its
// order.
func cgroupMounts(mountinfo, want string) ([]string, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		mount, fsType, ok := parseMount(sc.Text())
		if ok && fsType == want {
			mounts = append(mounts, mount)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", mountinfo, err)
	}
	return mounts, nil
}

// parseMount reads a line such as "36 35 98:0 /root /mount/point options fields... - type source options"
func parseMount(line string) (mount, fsType string, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !found || len(fields) < 5 || len(rest) < 1 {
		return "", "", false
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	return unescape.Replace(fields[4]), rest[0], true
}

// searchKubepods returns the kubepods directories that are nearest to the root.
func searchKubepods(root string) ([]string, error) {
	level := []string{root}
	for range kubepodsDepth {
		var found, next []string
		for _, dir := range level {
			children, err := subdirs(dir)
			if err != nil {
				return nil, err
			}
			for _, child := range children {
				if isKubepods(filepath.Base(child)) {
					found = append(found, child)
				}
			}
			next = append(next, children...)
		}
		if len(found) > 0 {
			return found, nil
		}
		level = next
	}
	return nil, nil
}

// isKubepods matches the names of the cgroupfs driver and of the systemd driver, and
// those below a cgroup root of the kubelet, such as kubelet-kubepods.slice.
func isKubepods(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// subdirs returns nothing for a directory that was removed: cgroups come and go.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(dir, e.Name()))
		}
	}
	return dirs, nil
}
