package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Reasons why redirection does not work. The daemon serves without it.
var (
	// ErrNoBPFFS: the pin directory is not in a BPF file system.
	ErrNoBPFFS = errors.New("not in a BPF file system: mount one with \"mount -t bpf bpf /sys/fs/bpf\", and into the container")
	// ErrPermission: the process lacks a capability.
	ErrPermission = errors.New("not permitted: needs the capabilities BPF, NET_ADMIN and PERFMON")
	// ErrKernel: the kernel lacks a feature.
	ErrKernel = errors.New("the kernel cannot do this: needs Linux 5.10 with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL")
	// ErrCgroup: programs cannot be attached to the directory.
	ErrCgroup = errors.New("not a cgroup v2 directory below the root: set the one of all pods")
	// ErrAncestor: a program on a cgroup above prevents attaching ours, or ours
	// would replace it.
	ErrAncestor = errors.New("a program above is attached without BPF_F_ALLOW_MULTI: its owner must set that flag")
	// ErrCgroupV1: the host has no cgroup v2 hierarchy.
	ErrCgroupV1 = errors.New("the host mounts cgroup v1 only, and sockets can be redirected only with cgroup v2: boot it with systemd.unified_cgroup_hierarchy=1, or set redirect off")
	// ErrPodsInV1: the pods are in cgroup v1.
	ErrPodsInV1 = errors.New("the pods are in cgroup v1 only, although the host mounts cgroup v2 too: boot it with systemd.unified_cgroup_hierarchy=1, or set redirect off")
	// ErrTornDown: an operator ran Teardown while this process ran.
	ErrTornDown = errors.New("an operator removed redirection with nodens teardown: restart nodens to redirect sockets again")
	// ErrNoKubepods: there is no cgroup of all pods, or several.
	ErrNoKubepods = errors.New("no single kubepods directory in a cgroup v2 hierarchy: set -kubepods")
)

// explain adds the sentinel error that matches an error of the kernel.
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
