package fastpath

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// networkOrder is n as a program reads it from a field in network byte order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(n >> 8), byte(n)})
}

// turn attaches a program that sends the packets of a pod back to it, with addresses and
// ports exchanged and the QR bit set. It does not update the UDP checksum: with offload,
// the kernel does not check it.
func (n *node) turn(t testing.TB, name string) {
	t.Helper()
	const packet, size, flags = -48, 45, 44 // Ethernet, IPv4, UDP, and ID and flags of DNS
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 16, asm.Word), // protocol
		asm.Mov.Imm(asm.R0, -1),
		asm.JNE.Imm(asm.R2, int32(networkOrder(unix.ETH_P_IP)), "end"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, packet),
		asm.Mov.Imm(asm.R4, size),
		asm.FnSkbLoadBytes.Call(),
	}
	exchange := func(x, y int16, size asm.Size) {
		ins = append(ins,
			asm.LoadMem(asm.R1, asm.RFP, packet+x, size), asm.LoadMem(asm.R2, asm.RFP, packet+y, size),
			asm.StoreMem(asm.RFP, packet+x, asm.R2, size), asm.StoreMem(asm.RFP, packet+y, asm.R1, size))
	}
	for off := int16(0); off < 6; off += 2 {
		exchange(off, 6+off, asm.Half)
	}
	for off := int16(26); off < 30; off += 2 {
		exchange(off, 4+off, asm.Half)
	}
	exchange(34, 36, asm.Half)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.RFP, packet+flags, asm.Byte),
		asm.Or.Imm(asm.R1, 0x80), // QR
		asm.StoreMem(asm.RFP, packet+flags, asm.R1, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, packet),
		asm.Mov.Imm(asm.R4, size),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.LoadMem(asm.R1, asm.R6, 40, asm.Word), // ifindex
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirectPeer.Call(),
		asm.Return().WithSymbol("end"),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: ins})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	attach(t, n.Netns, name, prog, ebpf.AttachTCXIngress)
}
