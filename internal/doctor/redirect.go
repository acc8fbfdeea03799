package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket redirection acts on sockets by the cgroup of who makes them, so that
// entering a pod's network namespace is not enough to see what the pod sees. A
// second process is started in a cgroup below the pods'; not in the pod's own,
// whose memory limit it could exceed.

// wanted tells whether redirection may be needed on this node.
func (r Redirect) wanted() bool { return r.Mode == "auto" || r.Mode == "on" }

// severity is that of something without which redirection cannot work: with
// auto it may well not be needed.
func (r Redirect) severity() Severity {
	if r.Mode == "auto" {
		return Warning
	}
	return Fault
}

// examineRedirect looks at what is in force, on the node.
func (e *examination) examineRedirect() {
	if e.Redirect.State == nil {
		return
	}
	s, err := e.Redirect.State()
	if err != nil {
		e.unexamined(fmt.Sprintf("socket redirection: %v", err))
		return
	}
	e.inForce = s
	e.below = s.Attached && isBelow(e.Redirect.Cgroup)
	switch {
	case !s.Attached && e.Redirect.Mode == "on":
		e.find(nodeView, "redirect-detached", fmt.Sprintf("redirection is on, and its programs are not attached (%s)", e.Redirect.PinDir))
	case s.Attached && !s.Alive:
		e.find(nodeView, "redirect-fallback", fmt.Sprintf("redirection takes nodens for dead: its last sign of life is %s old", s.HeartbeatAge.Round(time.Millisecond)))
	case s.Attached:
		e.fact(nodeView, "sockets of pods are redirected to nodens")
	}
}

// AskCommand is the command of nodens that the second process is started as. It
// reads an order from standard input and writes a reply.
const AskCommand = "doctor-ask"

// order is what to ask.
type order struct {
	Server  netip.AddrPort
	Timeout time.Duration
}

// reply says who answers.
type reply struct {
	UDP string // "": nobody
	TCP bool
}

// Ask carries out one order, where the process is.
func Ask(ctx context.Context, r io.Reader, w io.Writer) error {
	var o order
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return fmt.Errorf("%s: read the order: %w", AskCommand, err)
	}
	e := &examination{Config: Config{Timeout: o.Timeout}, notes: new(notes)}
	var rep reply
	together(
		func() { rep.UDP, _ = e.who(ctx, place{}, "udp", o.Server) },
		func() { rep.TCP = e.ask(ctx, place{}, "tcp", o.Server, chaos("id.server.")).answered() },
	)
	return json.NewEncoder(w).Encode(rep)
}

// askRedirected asks from the pod's namespace and below the pods' cgroup. tried
// is false where redirection is not in force or this cannot be done.
func (e *examination) askRedirected(ctx context.Context, p pod, server netip.AddrPort) (rep reply, tried bool) {
	if !e.inForce.Attached || e.optedOut(p) {
		return rep, false
	}
	rep, err := e.askBelow(ctx, p, server)
	if err != nil {
		e.unexamined(fmt.Sprintf("%s: what socket redirection does: %v", p.view, err))
		return rep, false
	}
	return rep, true
}

// askBelow starts the second process.
func (e *examination) askBelow(ctx context.Context, p pod, server netip.AddrPort) (rep reply, err error) {
	cgroup, remove, err := newCgroup(e.Redirect.Cgroup)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	in, err := json.Marshal(order{server, e.Timeout})
	if err != nil {
		return rep, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*e.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", AskCommand)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := p.do(cmd.Start); err != nil {
		return rep, fmt.Errorf("start a process below the pods' cgroup: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return rep, fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return rep, json.Unmarshal(out.Bytes(), &rep)
}

// newCgroup makes an empty cgroup below another.
func newCgroup(below string) (dir *os.File, remove func() error, err error) {
	if below == "" {
		return nil, nil, errors.New("the pods' cgroup is not known (-kubepods)")
	}
	name, err := os.MkdirTemp(below, "nodens-doctor-")
	if err != nil {
		return nil, nil, err
	}
	if dir, err = os.Open(name); err != nil {
		return nil, nil, errors.Join(err, os.Remove(name))
	}
	return dir, func() error { return errors.Join(dir.Close(), os.Remove(name)) }, nil
}

// isBelow tells whether this process is in a cgroup or below it. What
// /proc/self/cgroup says depends on the cgroup namespace, so it is looked for.
func isBelow(cgroup string) bool { return cgroupOf(cgroup, os.Getpid()) != "" }

// cgroupOf finds the directory of a process's cgroup, at or below another; "" if
// it is not there.
func cgroupOf(below string, pid int) string {
	if below == "" || pid == 0 {
		return ""
	}
	dir, wanted := "", strconv.Itoa(pid)
	_ = filepath.WalkDir(below, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // gone meanwhile
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err == nil && slices.Contains(strings.Fields(string(text)), wanted) {
			dir = path
			return filepath.SkipAll
		}
		return nil
	})
	return dir
}

// optedOut tells whether redirection leaves a pod alone: its cgroup, or one above.
func (e *examination) optedOut(p pod) bool {
	if len(e.inForce.OptedOut) == 0 {
		return false
	}
	for dir := cgroupOf(e.Redirect.Cgroup, p.pid); len(dir) > len(e.Redirect.Cgroup); dir = filepath.Dir(dir) {
		var s unix.Stat_t
		if unix.Stat(dir, &s) == nil && e.inForce.OptedOut[s.Ino] {
			return true
		}
	}
	return false
}

// judgeRedirected judges an address that sockets of pods are taken elsewhere
// from than packets.
func (e *examination) judgeRedirected(p pod, r reach) {
	switch {
	case isNodens(r.redirected):
		e.fact(p.view, fmt.Sprintf("%s is reached by socket redirection, answered by %s; by address %s answers", r.addr, r.redirected, orNobody(r.plain)))
	case r.redirected == "":
		e.find(p.view, "redirect-lost", fmt.Sprintf("queries for %s are redirected to %s, and nobody answers them", r.addr, e.inForce.Targets[r.addr]))
	default:
		e.find(p.view, "redirect-fallback", fmt.Sprintf("queries for %s are redirected to %s, not to nodens", r.addr, r.redirected))
	}
}
