package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What keeps redirection from working; the daemon serves without it.
var (
	// ErrNoBPFFS: the pin directory is not in a BPF file system.
	ErrNoBPFFS = errors.New("not in a BPF file system: mount one with \"mount -t bpf bpf /sys/fs/bpf\", and into the container")
	// ErrPermission: the process lacks a capability.
	ErrPermission = errors.New("not permitted: needs the capabilities BPF, NET_ADMIN and PERFMON")
	// ErrKernel: the kernel lacks a feature.
	ErrKernel = errors.New("the kernel cannot do this: needs Linux 5.10 with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL")
	// ErrCgroup: the directory cannot have the programs attached.
	ErrCgroup = errors.New("not a cgroup v2 directory below the root: name the one of the pods")
	// ErrAncestor: a program on a cgroup above keeps ours out, or would be kept
	// out by ours.
	ErrAncestor = errors.New("a program above is not attached with BPF_F_ALLOW_MULTI: have its owner attach it with that flag")
	// ErrNoKubepods: no cgroup of the pods was found, or several.
	ErrNoKubepods = errors.New("no single kubepods directory in a cgroup v2 hierarchy: name the directory")
)

// explain puts the sentinel beside an error of the kernel that has one.
func explain(op string, err error) error {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w (%w)", op, ErrKernel, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w (%w)", op, ErrPermission, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}
