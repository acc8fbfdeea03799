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

// privilegeExamination examines one process.
type privilegeExamination struct {
	*examination
	who string // the process, for display
	dir string // of the process in procfs
}

// examinePrivileges checks the capabilities and mounts of the daemon, or of this
// process if the daemon does not run or is not visible.
func (e *examination) examinePrivileges() {
	p := privilegeExamination{e, "this process", filepath.Join(e.Proc, "self")}
	if pid := e.daemonPID(); pid != 0 {
		p.who, p.dir = fmt.Sprintf("nodens (pid %d)", pid), e.proc.path(pid, "")
	}
	p.examineCapabilities()
	if e.Redirect.wanted() {
		p.examineMounts()
	}
}

func (e privilegeExamination) examineCapabilities() {
	caps, err := effective(filepath.Join(e.dir, "status"))
	if err != nil {
		e.unexamined(fmt.Sprintf("capabilities of %s: %v", e.who, err))
		return
	}
	for _, n := range e.Needs {
		has := slices.ContainsFunc(append([]uint{n.Bit}, n.Any...), func(bit uint) bool { return caps&(1<<bit) != 0 })
		if !has {
			e.findAs(nodeView, "capability-missing", n.Severity, fmt.Sprintf("%s lacks %s, needed %s", e.who, n.Name, n.For), "")
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
func (e privilegeExamination) examineMounts() {
	if !inBPFFS(filepath.Join(e.dir, "root", e.Redirect.PinDir)) {
		e.findAs(nodeView, "no-bpffs", e.Redirect.severity(), fmt.Sprintf("%s, as %s sees it, is not in a BPF file system", e.Redirect.PinDir, e.who), "")
	}
	b, err := os.ReadFile(filepath.Join(e.dir, "mountinfo"))
	if err != nil {
		e.unexamined(fmt.Sprintf("mounts of %s: %v", e.who, err))
		return
	}
	if !strings.Contains(string(b), " - cgroup2 ") {
		e.findAs(nodeView, "no-cgroup2", e.Redirect.severity(), fmt.Sprintf("%s sees no cgroup v2 hierarchy", e.who), "")
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
