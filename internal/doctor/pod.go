package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// errNoPod means that no process matches.
var errNoPod = errors.New("no process of a pod is visible from here (hostPID)")

// minID is the minimum length of the beginning of a container's or a pod's ID.
const minID = 6

// openPod finds the pod that spec names, see Config.Pods.
func (e *examination) openPod(spec string) (pod, error) {
	p := pod{place: place{view: spec}}
	path := spec
	var err error
	switch pid, nerr := strconv.Atoi(spec); {
	case nerr == nil:
		p.pid, path = pid, e.netnsOf(pid)
	case strings.Contains(spec, "/"):
		p.pid = e.processIn(spec)
	default:
		if p.pid, err = e.processOf(spec); err != nil {
			return p, err
		}
		path = e.netnsOf(p.pid)
	}
	if sameFile(path, e.ownNetns()) {
		return p, errHostNetwork
	}
	p.netns, err = os.Open(path)
	return p, err
}

func (e *examination) netnsOf(pid int) string {
	return filepath.Join(e.Proc, strconv.Itoa(pid), "ns/net")
}

func (e *examination) ownNetns() string { return filepath.Join(e.Proc, "thread-self/ns/net") }

// processes returns all process IDs in ascending order.
func (e *examination) processes() []int {
	dirs, _ := filepath.Glob(filepath.Join(e.Proc, "[0-9]*")) // the pattern is valid
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
func (e *examination) processIn(netns string) int {
	for _, pid := range e.processes() {
		if sameFile(netns, e.netnsOf(pid)) {
			return pid
		}
	}
	return 0
}

// processOf finds a process by its cgroup. It returns one of the container or pod
// whose ID begins with id. For Auto it returns one of any pod that is not in the
// host's network.
func (e *examination) processOf(id string) (int, error) {
	if id != Auto && len(id) < minID {
		return 0, fmt.Errorf("want a process ID, a path, or at least %d characters of a container's or a pod's ID", minID)
	}
	pause := 0
	for _, pid := range e.processes() {
		dir := filepath.Join(e.Proc, strconv.Itoa(pid))
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		switch {
		case err != nil:
		case id != Auto && namesID(string(cgroup), id):
			return pid, nil
		case id != Auto || !strings.Contains(string(cgroup), "kubepods") || sameFile(e.netnsOf(pid), e.ownNetns()):
		case isPause(dir): // it does not have the files of the pod's containers
			pause = pid
		default:
			return pid, nil
		}
	}
	if pause != 0 {
		return pause, nil
	}
	return 0, errNoPod
}

// isPause reports whether a process only holds a pod's namespaces.
func isPause(dir string) bool {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	return err == nil && strings.TrimSpace(string(comm)) == "pause"
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

// podResolvConf reads the resolv.conf that the pod's libc reads.
func (e *examination) podResolvConf(p pod) (resolvConf, bool) {
	if p.pid == 0 {
		e.unexamined(fmt.Sprintf("%s: resolv.conf: no process of this namespace is visible", p.view))
		return resolvConf{}, false
	}
	text, err := readInRoot(filepath.Join(e.Proc, strconv.Itoa(p.pid), "root"), "etc/resolv.conf")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.unexamined(fmt.Sprintf("%s: resolv.conf: %v", p.view, err))
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
