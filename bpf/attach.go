package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hook is one program and where it is attached.
type hook struct {
	name    string // of the program, its pinned link, and in metrics
	index   redirectHook
	attach  ebpf.AttachType
	forward bool // rewrites destinations; else what comes back
	program func(*redirectPrograms) *ebpf.Program
}

// hooks are in the order of attaching: reverse ones first, so that no socket is
// redirected that cannot be translated back. Detaching goes the other way round.
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

// Attach makes the programs run for all sockets below the cgroup, and pins
// their links. A predecessor's links are given the new programs, each
// atomically; a link whose cgroup was removed, or is another one, is replaced.
// Redirection by pinned programs of other versions ends; their translation of
// what comes back goes on, until RemoveOtherVersions. Attach may be called again
// at any time, to repair.
//
// A program above that keeps ours out is an *AncestorError.
func (r *Redirect) Attach() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	id, err := cgroupID(r.cgroup)
	if err != nil {
		return fmt.Errorf("redirect: attach: %w", err)
	}
	var made []string
	for _, h := range hooks() {
		fresh, err := r.attachHook(h, id)
		if err != nil {
			return errors.Join(fmt.Errorf("redirect: attach %s: %w", h.name, err), unpinAll(made))
		}
		if fresh {
			made = append(made, r.linkPath(h))
		}
	}
	return r.detachOtherVersions()
}

func (r *Redirect) linkPath(h hook) string { return filepath.Join(r.dir, linksDir, h.name) }

// attachHook reports whether it made the link at a place that had none.
func (r *Redirect) attachHook(h hook, id uint64) (fresh bool, err error) {
	path := r.linkPath(h)
	prog := h.program(&r.objs.redirectPrograms)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return true, r.makeLink(h, prog, path)
	}
	if err != nil {
		return false, explain("load pinned link", err)
	}
	defer l.Close()
	intact, err := isLinkedTo(l, id)
	if err != nil {
		return false, err
	}
	if intact {
		err := l.Update(prog)
		if err == nil {
			return false, nil
		}
		if !errors.Is(err, unix.ENOLINK) { // else removed just now
			return false, explain("update link", err)
		}
	}
	r.log.Warn("replacing a link whose cgroup is gone or another one", "hook", h.name, "cgroup", r.cgroup)
	return false, r.makeLink(h, prog, path)
}

// isLinkedTo is false for a severed link, whose cgroup id is 0.
func isLinkedTo(l link.Link, id uint64) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, explain("link info", err)
	}
	cg := info.Cgroup()
	return cg != nil && cg.CgroupId == id, nil
}

// makeLink attaches prog and puts the link's pin at path, in place of any other.
func (r *Redirect) makeLink(h hook, prog *ebpf.Program, path string) error {
	if err := checkAncestors(r.cgroup, h); err != nil {
		return err
	}
	dir, err := os.Open(r.cgroup)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: prog, Attach: h.attach})
	if err != nil {
		return explain("attach to "+r.cgroup, err)
	}
	defer l.Close()
	aside := path + "-new"
	if err := removePin(aside); err != nil {
		return err
	}
	if err := l.Pin(aside); err != nil {
		return explain("pin link", err)
	}
	if err := os.Rename(aside, path); err != nil {
		return errors.Join(fmt.Errorf("put link in place: %w", err), removePin(aside))
	}
	return nil
}

// unpinAll takes back what Attach made, last first.
func unpinAll(paths []string) error {
	var errs []error
	for i := range paths {
		errs = append(errs, removePin(paths[len(paths)-1-i]))
	}
	return errors.Join(errs...)
}

// removePin detaches a pinned link at once, even one that a process holds, and
// removes it. A missing one is no error.
func removePin(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		_ = l.Detach() // older than Linux 5.9: it goes with its last reference
		_ = l.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned link: %w", err)
	}
	return nil
}
