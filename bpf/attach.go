package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hook is one program and its attach point.
type hook struct {
	name    string // of the program and its pinned link; a metric label
	index   redirectHook
	attach  ebpf.AttachType
	forward bool // translates destinations; otherwise the peers of replies
	program func(*redirectPrograms) *ebpf.Program
}

// hooks returns the hooks in the order of attaching: reverse ones first, so that
// every redirected socket can be translated back. Detach forward ones first.
func hooks() []hook {
	return []hook{
		{redirectProgRecvmsg4, redirectHookHOOK_RECVMSG4, ebpf.AttachCGroupUDP4Recvmsg, false,
			func(p *redirectPrograms) *ebpf.Program { return p.Recvmsg4 }},
		{redirectProgRecvmsg6, redirectHookHOOK_RECVMSG6, ebpf.AttachCGroupUDP6Recvmsg, false,
			func(p *redirectPrograms) *ebpf.Program { return p.Recvmsg6 }},
		{redirectProgGetpeername4, redirectHookHOOK_GETPEERNAME4, ebpf.AttachCgroupInet4GetPeername, false,
			func(p *redirectPrograms) *ebpf.Program { return p.Getpeername4 }},
		{redirectProgGetpeername6, redirectHookHOOK_GETPEERNAME6, ebpf.AttachCgroupInet6GetPeername, false,
			func(p *redirectPrograms) *ebpf.Program { return p.Getpeername6 }},
		{redirectProgSendmsg4, redirectHookHOOK_SENDMSG4, ebpf.AttachCGroupUDP4Sendmsg, true,
			func(p *redirectPrograms) *ebpf.Program { return p.Sendmsg4 }},
		{redirectProgSendmsg6, redirectHookHOOK_SENDMSG6, ebpf.AttachCGroupUDP6Sendmsg, true,
			func(p *redirectPrograms) *ebpf.Program { return p.Sendmsg6 }},
		{redirectProgConnect4, redirectHookHOOK_CONNECT4, ebpf.AttachCGroupInet4Connect, true,
			func(p *redirectPrograms) *ebpf.Program { return p.Connect4 }},
		{redirectProgConnect6, redirectHookHOOK_CONNECT6, ebpf.AttachCGroupInet6Connect, true,
			func(p *redirectPrograms) *ebpf.Program { return p.Connect6 }},
	}
}

// Attach runs the programs for all sockets below the cgroup and pins their links.
// It replaces the program of each of a predecessor's links atomically, and replaces
// a link whose cgroup was removed or differs. Other versions stop redirecting, but
// translate replies until RemoveOtherVersions.
//
// If a program on a cgroup above prevents this, the error is an *AncestorError.
func (r *Redirect) Attach() error {
	defer lockPins(r.pinDir)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	return r.attach()
}

// Engage does Attach and Alive in one step, which no process of another version
// interrupts. After Teardown it returns ErrTornDown.
func (r *Redirect) Engage() error {
	defer lockPins(r.pinDir)()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if torn, err := isTornDown(r.pinDir); torn || err != nil {
		return cmp.Or(err, ErrTornDown)
	}
	if err := r.attach(); err != nil {
		return err
	}
	return r.declareAlive()
}

// attach needs mu and the lock of the pins.
func (r *Redirect) attach() error {
	if err := r.links.attach(); err != nil {
		return fmt.Errorf("redirect: attach: %w", err)
	}
	others, err := otherVersions(r.pinDir, r.dir)
	if err != nil {
		return err
	}
	return detachForward(r.log, others)
}

// links attaches the programs to a cgroup and pins their links. The owner holds the
// lock of its Redirect.
type links struct {
	cgroup   string // directory
	dir      string // of the version
	log      *slog.Logger
	programs *redirectPrograms
	// held are the links by hook. While this process lives, the programs stay attached
	// even without their pins.
	held map[string]link.Link
	pins pinInodes
}

// attach attaches all programs. After a failure it removes the links that it made.
func (l *links) attach() error {
	id, err := cgroupID(l.cgroup)
	if err != nil {
		return err
	}
	var made []string
	for _, h := range hooks() {
		fresh, err := l.attachHook(h, id)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", h.name, err), unpinAll(made))
		}
		if fresh {
			made = append(made, l.path(h))
		}
	}
	return nil
}

func (l *links) path(h hook) string { return filepath.Join(l.dir, linksDir, h.name) }

// attachHook attaches one program. fresh: no link was pinned or held before.
func (l *links) attachHook(h hook, id uint64) (fresh bool, err error) {
	path := l.path(h)
	prog := h.program(l.programs)
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		if held := l.held[h.name]; held != nil {
			if intact, err := isLinkedTo(held, id); err != nil || intact {
				return false, errors.Join(err, pinLink(held, path))
			}
		}
		return true, l.makeLink(h, prog, path)
	}
	if err != nil {
		return false, explain("load pinned link", err)
	}
	intact, err := isLinkedTo(pinned, id)
	if err != nil {
		return false, errors.Join(err, pinned.Close())
	}
	if intact {
		err := pinned.Update(prog)
		if err == nil {
			l.hold(h, pinned)
			return false, nil
		}
		if !errors.Is(err, unix.ENOLINK) { // ENOLINK: the cgroup was removed just now
			return false, errors.Join(explain("update link", err), pinned.Close())
		}
	}
	defer pinned.Close()
	l.log.Warn("replacing a link that was detached or whose cgroup differs", "hook", h.name, "cgroup", l.cgroup)
	if err := l.makeLink(h, prog, path); err != nil {
		return false, err
	}
	_ = pinned.Detach() // a process may hold it; fails if it is detached
	return false, nil
}

// hold replaces the held link of h.
func (l *links) hold(h hook, now link.Link) {
	if before := l.held[h.name]; before != nil {
		_ = before.Close()
	}
	l.held[h.name] = now
}

// close leaves the pinned links attached.
func (l *links) close() error {
	var errs []error
	for _, held := range l.held {
		errs = append(errs, held.Close())
	}
	clear(l.held)
	return errors.Join(errs...)
}

// isLinkedTo reports whether l is attached to the cgroup id. The id of a severed link
// is 0.
func isLinkedTo(l link.Link, id uint64) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, explain("link info", err)
	}
	cg := info.Cgroup()
	return cg != nil && cg.CgroupId == id, nil
}

// makeLink attaches prog and pins the link at path. It replaces another pin there.
func (l *links) makeLink(h hook, prog *ebpf.Program, path string) error {
	if err := checkAncestors(l.cgroup, h); err != nil {
		return err
	}
	dir, err := os.Open(l.cgroup)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	made, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: prog, Attach: h.attach})
	if err != nil {
		return explain("attach to "+l.cgroup, err)
	}
	defer made.Close()
	held, err := cloneLink(made) // a RawLink does not report its cgroup
	if err != nil {
		return err
	}
	if err := pinLink(held, path); err != nil {
		return errors.Join(err, held.Close())
	}
	l.hold(h, held)
	return nil
}

// pinLink pins a link at path. It replaces another pin there.
func pinLink(l link.Link, path string) error {
	// A Link remembers where it was pinned, and would not pin itself again.
	again, err := cloneLink(l)
	if err != nil {
		return err
	}
	defer again.Close()
	aside := path + "-new"
	if err := removePin(aside); err != nil {
		return err
	}
	if err := again.Pin(aside); err != nil {
		return explain("pin link", err)
	}
	if err := os.Rename(aside, path); err != nil {
		return errors.Join(fmt.Errorf("put link in place: %w", err), removePin(aside))
	}
	return nil
}

// cloneLink returns the same link with its own file descriptor.
func cloneLink(l link.Link) (link.Link, error) {
	with, ok := l.(interface{ FD() int })
	if !ok {
		return nil, fmt.Errorf("pin link: %T has no file descriptor", l)
	}
	fd, err := unix.FcntlInt(uintptr(with.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return link.NewFromFD(fd) // owns fd
}

// unpinAll removes the links that Attach made, last first.
func unpinAll(paths []string) error {
	var errs []error
	for i := range paths {
		errs = append(errs, removePin(paths[len(paths)-1-i]))
	}
	return errors.Join(errs...)
}

// removePin detaches a pinned link at once, even if a process holds it, and removes
// the pin. A missing pin is no error.
func removePin(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		_ = l.Detach() // fails before Linux 5.9: then the last reference detaches it
		_ = l.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned link: %w", err)
	}
	return nil
}
