package bpf

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/nodens-dns/nodens/internal/lab"
	"golang.org/x/sys/unix"
)

// The time of a system call in ns: without the programs, with them to a port that is
// not redirected, and with them to the VIP.
func BenchmarkSystemCall(b *testing.B) {
	p := newBenchPod(b)
	r := open(b, p.config(b))
	bench := func(what, addr string) {
		b.Run("connect/"+what, func(b *testing.B) { p.benchConnect(b, ap(addr)) })
		b.Run("sendmsg/"+what, func(b *testing.B) { p.benchSend(b, ap(addr)) })
	}
	bench("without", target4)
	check(b, r.Attach())
	check(b, r.Alive())
	bench("other port", target4)
	bench("other address", core4)
	bench("redirected", vip4)
	check(b, r.Withdraw())
	bench("fallback", vip4)
}

// newBenchPod has sinks instead of servers, whose answers would add to the result.
func newBenchPod(b *testing.B) *pod {
	b.Helper()
	lab.NeedBPF(b)
	p := &pod{ns: lab.NewNetns(b, "pod"), kubepods: lab.NewKubepods(b)}
	p.cgroup = lab.MakeCgroup(b, filepath.Join(p.kubepods, "pod"))
	p.ns.AddAddrs(b, "lo", "10.0.0.2/32", "10.0.0.3/32")
	p.sink(b, target4)
	p.sink(b, core4)
	return p
}

// sink receives packets; its buffer overflows after a few, and the rest is dropped.
func (p *pod) sink(b *testing.B, addr string) {
	b.Helper()
	p.ns.Inside(b, func() error {
		fd, err := makeSocket("udp4", answerWait)
		if err != nil {
			return err
		}
		b.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil {
			return err
		}
		return unix.Bind(fd, sockaddr(fd, ap(addr)))
	})
}

func (p *pod) benchConnect(b *testing.B, to netip.AddrPort) {
	fd, sa := p.benchSocket(b, to)
	for b.Loop() {
		if err := unix.Connect(fd, sa); err != nil {
			b.Fatal(err)
		}
	}
}

func (p *pod) benchSend(b *testing.B, to netip.AddrPort) {
	fd, sa := p.benchSocket(b, to)
	msg := []byte("q")
	for b.Loop() {
		if err := unix.Sendto(fd, msg, 0, sa); err != nil {
			b.Fatal(err)
		}
	}
}

// benchSocket creates a socket from within the pod: a socket belongs to the cgroup
// and the namespace of its creator.
func (p *pod) benchSocket(b *testing.B, to netip.AddrPort) (fd int, sa unix.Sockaddr) {
	b.Helper()
	join(b, p.cgroup)
	p.ns.Inside(b, func() (err error) {
		fd, err = makeSocket("udp4", answerWait)
		return err
	})
	join(b, lab.CgroupMount(b))
	b.Cleanup(func() { _ = unix.Close(fd) })
	return fd, sockaddr(fd, to)
}

func join(b *testing.B, dir string) {
	b.Helper()
	check(b, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
}

// The time of a run of a program by the kernel's statistics, which include reading
// the clock twice.
func BenchmarkProgram(b *testing.B) {
	p := newBenchPod(b)
	r := open(b, p.config(b))
	check(b, r.Attach())
	check(b, r.Alive())
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		lab.Skip(b, "needs run time statistics: "+err.Error())
	}
	defer stats.Close()
	bench := func(what, addr string) {
		b.Run("connect4/"+what, func(b *testing.B) {
			before, err := r.objs.Connect4.Stats()
			check(b, err)
			p.benchConnect(b, ap(addr))
			after, err := r.objs.Connect4.Stats()
			check(b, err)
			b.ReportMetric(float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount), "ns/run")
		})
	}
	bench("other port", target4)
	bench("other address", core4)
	bench("redirected", vip4)
	check(b, r.Withdraw())
	bench("fallback", vip4)
}
