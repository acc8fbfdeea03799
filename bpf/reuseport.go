package bpf

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// reuseportHash is the offset of hash in struct sk_reuseport_md: of addresses and
// ports of the packet.
const reuseportHash = 32

// TakePort makes the kernel choose only among conns for new packets to their port,
// although a frozen process holds sockets there. conns are all of one protocol, bound
// to the same address and port with SO_REUSEPORT; TCP sockets listen. When all of
// conns are closed, the kernel chooses among the other sockets again.
func TakePort(conns []syscall.RawConn) error {
	if len(conns) == 0 {
		return nil
	}
	prog, socks, err := loadSelector(uint32(len(conns)))
	if err != nil {
		return explain("take port", err)
	}
	defer prog.Close()
	defer socks.Close()
	for i, c := range conns {
		var putErr error
		err := c.Control(func(fd uintptr) { putErr = socks.Put(uint32(i), uint64(fd)) })
		if err = errors.Join(err, putErr); err != nil {
			return explain("take port: put socket", err)
		}
	}
	var setErr error
	err = conns[0].Control(func(fd uintptr) {
		setErr = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, prog.FD()))
	})
	if err = errors.Join(err, setErr); err != nil {
		return explain("take port: attach program", err)
	}
	return nil
}

// loadSelector loads a program that chooses one of n sockets by the packet's hash. If
// that one is closed, the kernel chooses among all.
func loadSelector(n uint32) (*ebpf.Program, *ebpf.Map, error) {
	socks, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ReusePortSockArray, KeySize: 4, ValueSize: 8, MaxEntries: n})
	if err != nil {
		return nil, nil, fmt.Errorf("create map: %w", err)
	}
	const pass = 1 // SK_PASS
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SkReuseport, AttachType: ebpf.AttachSkReuseportSelect, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, reuseportHash, asm.Word),
			asm.Mod.Imm(asm.R2, int32(n)),
			asm.StoreMem(asm.RFP, -4, asm.R2, asm.Word),
			asm.LoadMapPtr(asm.R2, socks.FD()),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnSkSelectReuseport.Call(),
			asm.Mov.Imm(asm.R0, pass),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("load program: %w", err), socks.Close())
	}
	return prog, socks, nil
}
