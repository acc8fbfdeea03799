package daemon

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

// heapLimit is the limit of the collector (GOMEMLIMIT) under a memory limit: a
// tenth less than what cached answers, which it does not know of, leave.
func heapLimit(limit, budget int64) int64 {
	return max((limit-budget)/10*9, minHeap)
}

// minHeap is what we run in without collecting all the time, in octets.
const minHeap = 16 << 20

// memoryGroup is a cgroup with a memory limit, v2 or v1.
type memoryGroup struct {
	v2  bool
	dir string // without the leading slash
}

// memoryLimit returns the lowest memory limit in octets of the cgroups that
// the process is in, v2 or v1, from /proc/self/cgroup and mountinfo, and which
// of them has it. root is the root directory.
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

// limit is the group's own, if it has one.
func (g memoryGroup) limit(root fs.FS) (int64, bool) {
	n, ok := g.read(root, "memory.max", "memory.limit_in_bytes")
	// v1 has no word for "none" but a figure near the largest.
	return n, ok && n < math.MaxInt64>>1
}

// used is what the group's processes take and the kernel cannot have back by
// dropping files that nobody reads.
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

// read reads one of the group's figures, named so in v2 and v1.
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

// upwards lists the cgroups from group to the mount's root.
func (m cgroupMount) upwards(group string) []memoryGroup {
	rel, inside := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
	if !inside {
		rel = "" // a cgroup namespace shows only what is mounted
	}
	var groups []memoryGroup
	for dir := path.Join(m.dir, rel); ; dir = path.Dir(dir) {
		groups = append(groups, memoryGroup{m.v2, dir})
		if dir == m.dir || dir == "." {
			return groups
		}
	}
}
