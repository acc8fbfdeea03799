package doctor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// examinePrivileges checks the capabilities and mounts of the daemon, or of this
// process if the daemon does not run or is not visible.
func (e *examination) examinePrivileges() {
	who, dir := "this process", "self"
	if pid := e.daemonPID(); pid != 0 {
		who, dir = fmt.Sprintf("nodens (pid %d)", pid), strconv.Itoa(pid)
	}
	if caps, err := effective(filepath.Join(e.Proc, dir, "status")); err != nil {
		e.unexamined(fmt.Sprintf("capabilities of %s: %v", who, err))
	} else {
		e.checkCapabilities(who, caps)
	}
	if e.Redirect.wanted() {
		e.examineMounts(who, filepath.Join(e.Proc, dir))
	}
}

func (e *examination) checkCapabilities(who string, caps uint64) {
	for _, n := range e.Needs {
		has := slices.ContainsFunc(append([]uint{n.Bit}, n.Any...), func(bit uint) bool { return caps&(1<<bit) != 0 })
		if !has {
			e.findAs(nodeView, "capability-missing", n.Severity, fmt.Sprintf("%s lacks %s, needed %s", who, n.Name, n.For), "")
		}
	}
}

// daemonPID returns the nodens process that listens on a local IP, or 0 if none is
// visible.
func (e *examination) daemonPID() int {
	for _, a := range e.Addresses {
		for _, h := range e.holdersOf(a.Port(), a.Addr()) {
			if h.PID != 0 && isOurs(h) {
				return h.PID
			}
		}
	}
	return 0
}

// effective reads the effective capabilities from a /proc/PID/status.
func effective(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if hex, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, fmt.Errorf("%s: no CapEff line", path)
}

// examineMounts checks the mounts that redirection needs, as the process sees them.
func (e *examination) examineMounts(who, proc string) {
	if !inBPFFS(filepath.Join(proc, "root", e.Redirect.PinDir)) {
		e.findAs(nodeView, "no-bpffs", e.Redirect.severity(), fmt.Sprintf("%s, as %s sees it, is not in a BPF file system", e.Redirect.PinDir, who), "")
	}
	b, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		e.unexamined(fmt.Sprintf("mounts of %s: %v", who, err))
		return
	}
	if !strings.Contains(string(b), " - cgroup2 ") {
		e.findAs(nodeView, "no-cgroup2", e.Redirect.severity(), fmt.Sprintf("%s sees no cgroup v2 hierarchy", who), "")
	}
}

// inBPFFS reports whether path, or the nearest existing directory above it, is in
// a BPF file system.
func inBPFFS(path string) bool {
	for {
		var s unix.Statfs_t
		if unix.Statfs(path, &s) == nil {
			return s.Type == unix.BPF_FS_MAGIC
		}
		if path == filepath.Dir(path) {
			return false
		}
		path = filepath.Dir(path)
	}
}
