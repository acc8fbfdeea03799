package main

import (
	"bufio"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Cache budgets in octets, see cacheBudget.
const (
	minBudget     = 4 << 20
	maxBudget     = 512 << 20
	unknownBudget = 64 << 20
)

// cacheBudget is the default for -cache-size: half of the memory limit, so
// that the other half is left for queries under way and the collector.
func cacheBudget(limit int64, limited bool) int64 {
	if !limited {
		return unknownBudget
	}
	return min(max(limit/2, minBudget), maxBudget)
}

// memoryLimit returns the lowest memory limit in octets of the cgroups that
// the process is in, v2 or v1, from /proc/self/cgroup and mountinfo. root is
// the root directory.
func memoryLimit(root fs.FS) (int64, bool) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	lowest := int64(math.MaxInt64)
	for _, m := range memoryMounts(root) {
		group, ok := cgroupPath(string(groups), m.v2)
		if !ok {
			continue
		}
		lowest = min(lowest, m.lowest(root, group))
	}
	// v1 has no word for "none" but a figure near the largest.
	return lowest, lowest < math.MaxInt64>>1
}

// cgroupMount is a mounted cgroup hierarchy that may limit memory.
type cgroupMount struct {
	v2   bool
	root string // the cgroup that is mounted
	dir  string // where, without the leading slash
}

// memoryMounts lists them from /proc/self/mountinfo, see proc_pid_mountinfo(5).
func memoryMounts(root fs.FS) []cgroupMount {
	f, err := root.Open("proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var mounts []cgroupMount
	for s := bufio.NewScanner(f); s.Scan(); {
		before, after, _ := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		m := cgroupMount{v2: right[0] == "cgroup2", root: left[3], dir: strings.TrimPrefix(left[4], "/")}
		if m.v2 || right[0] == "cgroup" && strings.Contains(","+right[2]+",", ",memory,") {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// cgroupPath finds the process's group in the text of /proc/self/cgroup.
func cgroupPath(groups string, v2 bool) (string, bool) {
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if v2 && f[0] == "0" && f[1] == "" || !v2 && strings.Contains(","+f[1]+",", ",memory,") {
			return f[2], true
		}
	}
	return "", false
}

// lowest is the lowest limit from group up to the mount's root.
func (m cgroupMount) lowest(root fs.FS, group string) int64 {
	name := "memory.limit_in_bytes"
	if m.v2 {
		name = "memory.max"
	}
	rel, inside := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
	if !inside {
		rel = "" // a cgroup namespace shows only what is mounted
	}
	low := int64(math.MaxInt64)
	for dir := path.Join(m.dir, rel); ; dir = path.Dir(dir) {
		if b, err := fs.ReadFile(root, path.Join(dir, name)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				low = min(low, n)
			}
		}
		if dir == m.dir || dir == "." {
			return low
		}
	}
}
