package fastpath

import (
	"encoding/binary"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// busy returns the time that all CPUs of the machine have worked.
func busy(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	var ticks int
	for i, field := range strings.Fields(strings.SplitN(string(text), "\n", 2)[0]) {
		if n, err := strconv.Atoi(field); err == nil && i != 4 && i != 5 { // idle, iowait
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// lone sends b.N queries from a pod, each after the reply to the one before. It reports
// the time of the median and the CPU time of the whole machine per query.
func lone(b *testing.B, pod *lab.Netns) {
	c := pod.Dial(b, "udp", vip4+":53")
	defer c.Close()
	query, err := lab.Query("name.example.", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	buf, took := make([]byte, 4096), make([]time.Duration, 0, b.N)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	before := busy(b)
	for range b.N {
		start := time.Now()
		exchange(b, c, query, buf)
		took = append(took, time.Since(start))
	}
	cpu := busy(b) - before
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(cpu.Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
}

func exchange(b *testing.B, c net.Conn, query, buf []byte) {
	if _, err := c.Write(query); err != nil {
		b.Fatal(err)
	}
	if _, err := c.Read(buf); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkVeth compares, from a pod across a veth: CoreDNS, nodens in user space, nodens
// with the fast path, and a program that only turns packets round.
func BenchmarkVeth(b *testing.B) {
	coreDNS := lab.CoreDNS(b)
	b.Run("coredns", func(b *testing.B) {
		n := newNode(b, fixed)
		conf := lab.WriteFile(b, b.TempDir()+"/Corefile", strings.Replace(corefileWith(), "prometheus "+metrics, "prometheus 127.0.0.1:9253", 1))
		lab.Command{Netns: n.Netns, Args: []string{coreDNS, "-conf", conf}}.Start(b).Out.WaitFor(b, 0, "CoreDNS-")
		n.routed.Ask(b, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
		lone(b, n.routed)
	})
	b.Run("user", func(b *testing.B) {
		n := newNode(b, fixed)
		n.start(b, 0)
		n.routed.Ask(b, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
		lone(b, n.routed)
	})
	b.Run("fastpath", func(b *testing.B) {
		n := newNode(b, fixed)
		n.start(b, 2, "fastpath on")
		n.warm(b, n.routed, vip4+":53", "name.example.")
		lone(b, n.routed)
	})
	b.Run("turned", func(b *testing.B) {
		n := newNode(b, fixed)
		n.turn(b, "cali1")
		lone(b, n.routed)
	})
}

// networkOrder is n as a program reads it from a field in network byte order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(n >> 8), byte(n)})
}

// turn sends the packets of a pod back to it, with addresses and ports exchanged.
func (n *node) turn(b *testing.B, name string) {
	b.Helper()
	const packet, size = -48, 38 // Ethernet, IPv4 and the ports of UDP
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
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = prog.Close() })
	n.attach(b, name, prog, ebpf.AttachTCXIngress)
}
