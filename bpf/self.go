package bpf

import (
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// netnsCookie returns SO_NETNS_COOKIE of the calling thread's network namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("network namespace cookie: %w", os.NewSyscallError("getsockopt", err))
	}
	return cookie, nil
}

// currentCgroupID runs a program to get this process's cgroup: in a cgroup namespace,
// the paths in /proc do not identify it.
func currentCgroupID() (uint64, error) {
	out, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, explain("own cgroup: create map", err)
	}
	defer out.Close()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.RawTracepoint,
		License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.FnGetCurrentCgroupId.Call(),
			asm.Mov.Reg(asm.R6, asm.R0),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, out.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "exit"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
			asm.Return(),
		},
	})
	if err != nil {
		return 0, explain("own cgroup: load program", err)
	}
	defer prog.Close()
	runtime.LockOSThread() // the program sees the thread that runs it
	defer runtime.UnlockOSThread()
	if _, err := prog.Run(&ebpf.RunOptions{}); err != nil {
		return 0, explain("own cgroup: run program", err)
	}
	var id uint64
	if err := out.Lookup(uint32(0), &id); err != nil {
		return 0, explain("own cgroup: look up", err)
	}
	return id, nil
}
