package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket redirection depends on the cgroup of the process that creates a socket. So
// doctor starts a second process in a new cgroup below that of the pods. It does not
// use the pod's own cgroup, because of its memory limit.

// wanted reports whether redirection may be needed on this node.
func (r Redirect) wanted() bool { return r.Mode == "auto" || r.Mode == "on" }

// severity is the severity of a missing requirement of redirection. With auto,
// redirection may not be needed at all.
func (r Redirect) severity() Severity {
	if r.Mode == "auto" {
		return Warning
	}
	return Fault
}

// examineRedirect checks whether redirection works on the node.
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
	e.exempt = s.Attached && e.Redirect.isIn(os.Getpid(), func(cgroup uint64) bool { return cgroup == s.Own })
	e.below = s.Attached && !e.exempt && cgroupOf(e.Redirect.Cgroup, os.Getpid()) != ""
	switch {
	case !s.Attached && e.Redirect.Mode == "on":
		e.find(nodeView, "redirect-detached", fmt.Sprintf("redirection is on, but its programs are not attached (%s)", e.Redirect.PinDir))
	case s.Attached && !s.Alive:
		e.find(nodeView, "redirect-fallback", fmt.Sprintf("redirection treats nodens as dead: its last heartbeat is %s old", s.HeartbeatAge.Round(time.Millisecond)))
	case s.Attached:
		e.fact(nodeView, "sockets of pods are redirected to nodens")
	}
}

// AskCommand is the nodens subcommand of the second process. It reads a request
// from standard input and writes a reply to standard output, as JSON.
const AskCommand = "doctor-ask"

// request names the server to query.
type request struct {
	Server  netip.AddrPort
	Timeout time.Duration
}

// reply is the result of a request.
type reply struct {
	UDP string // the server that answers; "": none
	TCP bool   // a server answers
}

// Ask executes one request in the network namespace and cgroup of the process.
func Ask(ctx context.Context, r io.Reader, w io.Writer) error {
	var o request
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return fmt.Errorf("%s: read the request: %w", AskCommand, err)
	}
	c := client{o.Timeout}
	var rep reply
	parallel(
		func() { rep.UDP, _ = c.identify(ctx, place{}, o.Server) },
		func() { rep.TCP = c.query(ctx, place{}, "tcp", o.Server, chaos("id.server.")).answered() },
	)
	return json.NewEncoder(w).Encode(rep)
}

// queryRedirected queries server from the pod's network namespace and below the
// pods' cgroup. tried is false if redirection is not active, or on an error.
func (e *podExamination) queryRedirected(ctx context.Context, server netip.AddrPort) (rep reply, tried bool) {
	if !e.inForce.Attached || e.optedOut() {
		return rep, false
	}
	if e.exempt {
		return e.queryTarget(ctx, server)
	}
	rep, err := e.queryBelow(ctx, server)
	if err != nil {
		e.unexamined(fmt.Sprintf("%s: socket redirection: %v", e.view, err))
		return rep, false
	}
	return rep, true
}

// queryTarget queries the target of server in place of a redirected socket. The
// daemon's cgroup is not redirected, and its container may not create another.
func (e *podExamination) queryTarget(ctx context.Context, server netip.AddrPort) (rep reply, tried bool) {
	target, redirected := e.inForce.Targets[server]
	if !redirected || !e.inForce.Alive {
		return rep, false
	}
	parallel(
		func() { rep.UDP, _ = e.identify(ctx, e.place, target) },
		func() { rep.TCP = e.query(ctx, e.place, "tcp", target, chaos("id.server.")).answered() },
	)
	return rep, true
}

// queryBelow starts the second process.
func (e *podExamination) queryBelow(ctx context.Context, server netip.AddrPort) (rep reply, err error) {
	cgroup, remove, err := newCgroup(e.Redirect.Cgroup)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	in, err := json.Marshal(request{server, e.Timeout})
	if err != nil {
		return rep, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*e.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", AskCommand)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := e.do(cmd.Start); err != nil {
		return rep, fmt.Errorf("start a process in the pods' cgroup: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return rep, fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return rep, json.Unmarshal(out.Bytes(), &rep)
}

// newCgroup creates an empty cgroup below another.
func newCgroup(below string) (dir *os.File, remove func() error, err error) {
	if below == "" {
		return nil, nil, errors.New("the pods' cgroup was not found (-kubepods)")
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

// cgroupOf returns the directory of a process's cgroup, if it is the directory
// below or lower, else "". It searches the hierarchy, because /proc/PID/cgroup depends
// on the cgroup namespace.
func cgroupOf(below string, pid int) string {
	if below == "" || pid == 0 {
		return ""
	}
	dir := ""
	_ = walkProcesses(below, func(at string, found int) bool {
		if found == pid {
			dir = at
		}
		return dir == ""
	})
	return dir
}

// optedOut reports whether the pod's cgroup, or one above it, has opted out.
func (e *podExamination) optedOut() bool {
	return len(e.inForce.OptedOut) > 0 && e.Redirect.isIn(e.pid, func(cgroup uint64) bool { return e.inForce.OptedOut[cgroup] })
}

// isIn reports whether a process's cgroup, or one above it and below that of the pods,
// has a matching id, which is the inode number of its directory.
func (r Redirect) isIn(pid int, match func(cgroup uint64) bool) bool {
	for dir := cgroupOf(r.Cgroup, pid); len(dir) > len(r.Cgroup); dir = filepath.Dir(dir) {
		var s unix.Stat_t
		if unix.Stat(dir, &s) == nil && match(s.Ino) {
			return true
		}
	}
	return false
}

// checkRedirected reports on an address whose queries are redirected.
func (e *podExamination) checkRedirected(r reach) {
	switch {
	case isNodens(r.redirected):
		e.fact(e.view, fmt.Sprintf("%s is reached by socket redirection, answered by %s; without redirection, %s answers", r.addr, r.redirected, orNone(r.plain)))
	case r.redirected == "":
		target := e.inForce.Targets[r.addr]
		why, do := e.whyLost(target)
		e.findAs(e.view, "redirect-lost", "", fmt.Sprintf("queries for %s are redirected to %s, and no server answers there: %s", r.addr, target, why), do)
	default:
		e.find(e.view, "redirect-fallback", fmt.Sprintf("queries for %s are redirected to %s, not to nodens", r.addr, r.redirected))
	}
}
