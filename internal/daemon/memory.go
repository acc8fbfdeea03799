package daemon

import (
	"bufio"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// memoryGroup is a cgroup with a memory limit, v2 or v1.
type memoryGroup struct {
	v2  bool
	dir string // without the leading slash
}

// memoryLimit returns the lowest memory limit, in bytes, of the cgroups that
// contain this process, v2 or v1, and the group that sets it. It reads
// /proc/self/cgroup and mountinfo below root.
func memoryLimit(root fs.FS) (lowest int64, group memoryGroup, limited bool) {
	lowest = math.MaxInt64
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return lowest, group, false
	}
	for _, m := range memoryMounts(root) {
		own, ok := cgroupPath(string(groups), m.v2)
		if !ok {
			continue
		}
		for _, g := range m.upwards(own) {
			if n, ok := g.limit(root); ok && n < lowest {
				lowest, group = n, g
			}
		}
	}
	return lowest, group, lowest < math.MaxInt64
}

// limit returns the group's own limit in bytes, if it has one.
func (g memoryGroup) limit(root fs.FS) (int64, bool) {
	n, ok := g.read(root, "memory.max", "memory.limit_in_bytes")
	// v1 writes "no limit" as a number near the maximum.
	return n, ok && n < math.MaxInt64>>1
}

// used returns the bytes that the group uses, less the inactive file cache, which
// the kernel can reclaim.
func (g memoryGroup) used(root fs.FS) (int64, bool) {
	n, ok := g.read(root, "memory.current", "memory.usage_in_bytes")
	stat, err := fs.ReadFile(root, path.Join(g.dir, "memory.stat"))
	if !ok || err != nil {
		return n, ok
	}
	name := "total_inactive_file "
	if g.v2 {
		name = "inactive_file "
	}
	for line := range strings.Lines(string(stat)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			idle, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n - idle, true
		}
	}
	return n, true
}

// read reads one of the group's numbers from the file v2 or v1.
func (g memoryGroup) read(root fs.FS, v2, v1 string) (int64, bool) {
	name := v1
	if g.v2 {
		name = v2
	}
	b, err := fs.ReadFile(root, path.Join(g.dir, name))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// cgroupMount is a mounted cgroup hierarchy that may limit memory.
type cgroupMount struct {
	v2   bool
	root string // the cgroup that is mounted
	dir  string // mount point, without the leading slash
}

// memoryMounts lists the mounts in /proc/self/mountinfo, see proc_pid_mountinfo(5).
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

// cgroupPath returns the process's group from the text of /proc/self/cgroup.
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

// upwards lists the cgroups from group to the mount's root.
func (m cgroupMount) upwards(group string) []memoryGroup {
	rel, inside := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
	if !inside {
		rel = "" // in a cgroup namespace, paths are not those of the host
	}
	var groups []memoryGroup
	for dir := path.Join(m.dir, rel); ; dir = path.Dir(dir) {
		groups = append(groups, memoryGroup{m.v2, dir})
		if dir == m.dir || dir == "." {
			return groups
		}
	}
}
