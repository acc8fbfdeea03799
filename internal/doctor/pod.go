package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pod is a pod's network namespace, with one of its processes if visible.
type pod struct {
	place
	pid int // 0: no process is visible
}

// errHostNetwork means that a pod has no network namespace of its own.
var errHostNetwork = errors.New("is in the host's network")

// errNoPod means that no process matches, errHidden that one may exist which this
// process cannot see.
var (
	errNoPod  = errors.New("there is no such pod on this node, or none outside of the host's network")
	errHidden = errors.New("the pods' processes are not visible from here: run doctor on the node, or in a pod with hostPID and the host's /sys/fs/cgroup (the tier full)")
)

// minID is the minimum length of the beginning of a container's or a pod's ID.
const minID = 6

// procfs is the mount point of proc.
type procfs string

func (proc procfs) path(pid int, name string) string {
	return filepath.Join(string(proc), strconv.Itoa(pid), name)
}

// openPod finds the pod that spec names, see Config.Pods. kubepods is the cgroup v2
// directory of all pods, or "". nodeServers are the nameservers of the node.
func (proc procfs) openPod(spec, kubepods string, nodeServers []netip.Addr) (pod, error) {
	p := pod{place: place{view: spec}}
	path := spec
	var err error
	switch pid, nerr := strconv.Atoi(spec); {
	case nerr == nil:
		p.pid, path = pid, proc.path(pid, "ns/net")
	case strings.Contains(spec, "/"):
		p.pid = proc.processIn(spec)
	default:
		if p.pid, err = proc.processOf(spec, kubepods, nodeServers); err != nil {
			return p, err
		}
		path = proc.path(p.pid, "ns/net")
	}
	if sameFile(path, proc.ownNetns()) {
		return p, errHostNetwork
	}
	p.netns, err = os.Open(path)
	return p, err
}

func (proc procfs) ownNetns() string { return filepath.Join(string(proc), "thread-self/ns/net") }

// processes returns all process IDs in ascending order.
func (proc procfs) processes() []int {
	dirs, _ := filepath.Glob(filepath.Join(string(proc), "[0-9]*")) // the pattern is valid
	var pids []int
	for _, d := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// processIn returns a process in a network namespace, or 0 if none is visible.
func (proc procfs) processIn(netns string) int {
	for _, pid := range proc.processes() {
		if sameFile(netns, proc.path(pid, "ns/net")) {
			return pid
		}
	}
	return 0
}

// processOf finds a process by its cgroup. It returns one of the container or pod
// whose ID begins with id. For Auto it returns one of any pod that is not in the
// host's network, preferably one that has files and other nameservers than the node.
func (proc procfs) processOf(id, kubepods string, nodeServers []netip.Addr) (int, error) {
	if id != Auto && len(id) < minID {
		return 0, fmt.Errorf("want a process ID, a path, or at least %d characters of a container's or a pod's ID", minID)
	}
	cgroups, complete := proc.podProcesses(kubepods)
	other := 0
	for _, pid := range slices.Sorted(maps.Keys(cgroups)) {
		switch {
		case id != Auto && namesID(cgroups[pid], id):
			return pid, nil
		case id != Auto || sameFile(proc.path(pid, "ns/net"), proc.ownNetns()):
		case proc.isPause(pid), proc.hasNoServers(pid, nodeServers):
			other = pid
		default:
			return pid, nil
		}
	}
	switch {
	case other != 0:
		return other, nil
	case complete:
		return 0, errNoPod
	}
	return 0, errHidden
}

// hasNoServers reports whether a process's nameservers are not visible, or are the node's.
func (proc procfs) hasNoServers(pid int, nodeServers []netip.Addr) bool {
	servers := proc.nameservers(pid)
	return len(servers) == 0 || slices.Equal(servers, nodeServers)
}

// podProcesses returns the visible processes of pods, with their cgroups. complete
// means that it sees all of them. It reads the directories of cgroups, as
// /proc/PID/cgroup is cut off at the root of a private cgroup namespace. That file is
// for pods in a cgroup v1.
func (proc procfs) podProcesses(kubepods string) (cgroups map[int]string, complete bool) {
	cgroups = make(map[int]string)
	complete = kubepods != ""
	_ = walkProcesses(kubepods, func(dir string, pid int) bool {
		if pid == 0 {
			complete = false // in a PID namespace that this process does not see
			return true
		}
		cgroups[pid] = dir
		return true
	})
	if len(cgroups) > 0 {
		return cgroups, complete
	}
	for _, pid := range proc.processes() {
		if text, err := os.ReadFile(proc.path(pid, "cgroup")); err == nil && strings.Contains(string(text), "kubepods") {
			cgroups[pid] = string(text)
		}
	}
	return cgroups, complete || proc.isInitial()
}

// initialPIDs is the PID namespace of the node, PROC_PID_INIT_INO in the kernel's
// proc_ns.h.
const initialPIDs = "pid:[4026531836]"

// isInitial reports whether this process sees all processes of the machine.
func (proc procfs) isInitial() bool {
	ns, err := os.Readlink(filepath.Join(string(proc), "thread-self/ns/pid"))
	return err == nil && ns == initialPIDs
}

// walkProcesses calls f for the processes of a cgroup and of those below it, until f
// returns false. A process that the caller cannot see has the PID 0.
func walkProcesses(cgroup string, f func(dir string, pid int) bool) error {
	if cgroup == "" {
		return nil
	}
	return filepath.WalkDir(cgroup, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // removed meanwhile
		}
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && !f(dir, pid) {
				return fs.SkipAll
			}
		}
		return nil
	})
}

// isPause reports whether a process only holds a pod's namespaces. It does not have the
// files of the pod's containers.
func (proc procfs) isPause(pid int) bool {
	comm, err := os.ReadFile(proc.path(pid, "comm"))
	return err == nil && strings.TrimSpace(string(comm)) == "pause"
}

// nameservers returns those in the resolv.conf of a process, or none.
func (proc procfs) nameservers(pid int) []netip.Addr {
	text, _ := readInRoot(proc.path(pid, "root"), "etc/resolv.conf")
	return parseResolvConf(text).servers
}

// namesID reports whether a component of a path in /proc/PID/cgroup begins with
// id. It knows the forms of container runtimes: cri-containerd-ID.scope, and pod
// UIDs with dashes or underscores.
func namesID(cgroup, id string) bool {
	underscored := strings.ReplaceAll(id, "-", "_")
	for _, part := range strings.FieldsFunc(cgroup, func(r rune) bool { return r == '/' || r == '\n' || r == ':' }) {
		part = strings.TrimSuffix(strings.TrimSuffix(part, ".scope"), ".slice")
		last := part[strings.LastIndexByte(part, '-')+1:]
		for _, s := range []string{part, last, strings.TrimPrefix(part, "pod"), strings.TrimPrefix(last, "pod")} {
			if strings.HasPrefix(s, id) || strings.HasPrefix(s, underscored) {
				return true
			}
		}
	}
	return false
}

func sameFile(a, b string) bool {
	var sa, sb unix.Stat_t
	return unix.Stat(a, &sa) == nil && unix.Stat(b, &sb) == nil && sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// resolvConf reads the resolv.conf that the pod's libc reads.
func (e *podExamination) resolvConf() (resolvConf, bool) {
	if e.pid == 0 {
		e.unexamined(fmt.Sprintf("%s: resolv.conf: no process of this namespace is visible", e.view))
		return resolvConf{}, false
	}
	text, err := readInRoot(e.proc.path(e.pid, "root"), "etc/resolv.conf")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.unexamined(fmt.Sprintf("%s: resolv.conf: %v", e.view, err))
		}
		return resolvConf{}, false
	}
	return parseResolvConf(text), true
}

// maxResolvConf limits how much of a resolv.conf is read, in bytes.
const maxResolvConf = 64 << 10

// readInRoot reads a regular file below root. The pod is not trusted: symbolic
// links are followed only within root, and opening never blocks.
func readInRoot(root, name string) (string, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(dir, name, &how)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: filepath.Join(root, name), Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("not a regular file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	return string(b), err
}
