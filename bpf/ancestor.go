package bpf

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AncestorError reports a program on a cgroup above ours that is attached without
// BPF_F_ALLOW_MULTI. It wraps ErrAncestor.
type AncestorError struct {
	Cgroup string // the directory of the ancestor
	Hook   string // for example connect4
	// Override: the program is attached with BPF_F_ALLOW_OVERRIDE. Our program would
	// replace it for all pods. Otherwise the kernel refuses ours with EPERM.
	Override bool
}

func (e *AncestorError) Error() string {
	how := "without flags, which forbids programs below"
	if e.Override {
		how = "with BPF_F_ALLOW_OVERRIDE, so that ours would replace it for all pods"
	}
	return fmt.Sprintf("%s has a %s program that is attached %s: %v", e.Cgroup, e.Hook, how, ErrAncestor)
}

func (e *AncestorError) Unwrap() error { return ErrAncestor }

// checkAncestors checks the cgroups that the kernel considers: the nearest ones, up
// to one whose programs are attached with BPF_F_ALLOW_MULTI.
func checkAncestors(cgroup string, h hook) error {
	above, err := ancestors(cgroup)
	if err != nil {
		return fmt.Errorf("find the cgroups above: %w", err)
	}
	for _, dir := range append([]string{cgroup}, above...) {
		flags, count, err := queryAttached(dir, uint32(h.attach))
		if err != nil {
			return explain("query programs of "+dir, err)
		}
		if count == 0 {
			continue
		}
		if flags&unix.BPF_F_ALLOW_MULTI != 0 {
			return nil
		}
		return &AncestorError{Cgroup: dir, Hook: h.name, Override: flags&unix.BPF_F_ALLOW_OVERRIDE != 0}
	}
	return nil
}

// HasSocketLB reports whether programs of a cgroup above ours may translate
// destinations, as Cilium's socket load balancer does. They run after ours, and a reply
// from a service behind them seems to come from another address.
func HasSocketLB(cgroup string) (bool, error) {
	above, err := ancestors(cgroup)
	if err != nil {
		return false, fmt.Errorf("find the cgroups above: %w", err)
	}
	for _, dir := range above {
		for _, h := range hooks() {
			if !h.forward {
				continue
			}
			if _, count, err := queryAttached(dir, uint32(h.attach)); err != nil || count > 0 {
				return count > 0, err
			}
		}
	}
	return false, nil
}

// queryAttr is the part of union bpf_attr that BPF_PROG_QUERY uses.
type queryAttr struct {
	targetFD    uint32
	attachType  uint32
	queryFlags  uint32
	attachFlags uint32
	progIDs     uint64
	progCount   uint32
	_           [9]uint32 // fields of newer kernels, zero
}

// queryAttached returns the number of programs that are attached to the cgroup
// itself, and their attach flags.
func queryAttached(dir string, attachType uint32) (flags, count uint32, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	attr := queryAttr{targetFD: uint32(f.Fd()), attachType: attachType}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(f)
	if errno != 0 {
		return 0, 0, os.NewSyscallError("bpf query", errno)
	}
	return attr.attachFlags, attr.progCount, nil
}
