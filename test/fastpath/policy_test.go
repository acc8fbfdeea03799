package fastpath

import (
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// deny drops DNS queries of the routed pod at the node.
func deny(t *testing.T, n *node) {
	t.Helper()
	n.Netns.Nft(t, "table inet denied { chain input { type filter hook input priority 0; ip saddr 10.1.1.5 udp dport 53 drop; ip6 saddr fd00:1:1::5 udp dport 53 drop; }; }")
}

// asks sends a query and reports whether a reply arrives soon.
func asks(t *testing.T, pod *lab.Netns, server, name string) bool {
	t.Helper()
	c := pod.Dial(t, "udp", server)
	defer c.Close()
	wire, err := lab.Query(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(wire); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(make([]byte, 4096))
	return err == nil
}

// silent waits until three queries of the pod in a row get no reply.
func silent(t *testing.T, pod *lab.Netns, server, name string) {
	t.Helper()
	lost := 0
	for late := time.Now().Add(2 * time.Minute); time.Now().Before(late); {
		if lost++; asks(t, pod, server, name) {
			lost = 0
		}
		if lost == 3 {
			return
		}
	}
	t.Errorf("%s still gets replies", pod.Name)
}

// TestDeniedPod: a pod whose queries the node drops never gets an answer, although the
// kernel has the answer for another pod.
func TestDeniedPod(t *testing.T) {
	n := newNode(t, fixed)
	deny(t, n)
	n.start(t, 2, "fastpath on")
	for _, server := range servers() {
		n.warm(t, n.bridged, server, "name.example.")
		for range 10 {
			if asks(t, n.routed, server, "name.example.") {
				t.Fatalf("a pod whose DNS is denied got an answer of %s", server)
			}
		}
	}
}

// TestLaterPolicy: a policy that is added while the kernel answers a pod takes effect
// when the pod's lease ends. Another pod is not affected.
func TestLaterPolicy(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on {", "lease 1s", "}")
	for _, server := range servers() {
		n.warm(t, n.routed, server, "name.example.")
	}
	deny(t, n)
	for _, server := range servers() {
		silent(t, n.routed, server, "name.example.")
		n.bridged.Ask(t, "udp", server, lab.Query("name.example.", dns.TypeA))
	}
}

// TestTransparentProxy: a DNS proxy on the node forwards a pod's queries with the pod's own
// address, from lo. It must go on seeing all of them, so the pod gets no lease.
func TestTransparentProxy(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on")
	for i, server := range servers() {
		n.warm(t, n.bridged, server, "name.example.")
		leases, _ := n.Scrape(t, metrics).Sum("nodens_kernel_leases")
		c := dialFrom(t, n.Netns, []string{"10.1.1.5", "fd00:1:1::5"}[i], server)
		wire, _ := lab.Query("name.example.", dns.TypeA).Pack()
		for range 5 { // the replies go to the pod
			if _, err := c.Write(wire); err != nil {
				t.Fatal(err)
			}
		}
		// The daemon has answered all of them when it answers a later query.
		n.bridged.Ask(t, "udp", server, lab.Query("later.example.", dns.TypeA))
		if now, _ := n.Scrape(t, metrics).Sum("nodens_kernel_leases"); now > leases {
			t.Errorf("%v leases, %v before a proxy forwarded queries of another pod to %s", now, leases, server)
		}
	}
}

// dialFrom returns a socket that sends to server from addr, which is not an address of the
// namespace.
func dialFrom(t *testing.T, n *lab.Netns, addr, server string) (c net.Conn) {
	t.Helper()
	n.Inside(t, func() error {
		d := net.Dialer{
			LocalAddr: &net.UDPAddr{IP: net.ParseIP(addr), Port: 4000},
			Control: func(_, _ string, raw syscall.RawConn) error {
				var err error
				level, option := unix.SOL_IP, unix.IP_TRANSPARENT
				if strings.Contains(addr, ":") {
					level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
				}
				cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
				return errors.Join(err, cerr)
			},
		}
		var err error
		c, err = d.Dial("udp", server)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// setNeighbour sets the MAC address of a neighbour for good.
func setNeighbour(t *testing.T, n *lab.Netns, device, addr string, mac net.HardwareAddr) {
	t.Helper()
	n.Inside(t, func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(addr), HardwareAddr: mac,
		})
	})
}

// macOf returns the MAC address of a device.
func macOf(t *testing.T, n *lab.Netns, device string) (mac net.HardwareAddr) {
	t.Helper()
	n.Inside(t, func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	return mac
}

// TestForgedAddress: a pod on a bridge sends queries with the address of another one,
// whose queries a policy drops. They obtain no lease for that pod.
func TestForgedAddress(t *testing.T) {
	n := newNode(t, fixed)
	forger := n.addPort(t, "forger", "veth2", "10.2.0.6/24", "fd00:2::6/64")
	n.start(t, 3, "fastpath on {", "lease 1s", "}")
	n.warm(t, n.bridged, vip4+":53", "name.example.")
	// The policy drops ARP, too.
	setNeighbour(t, n.bridged, "eth0", "10.2.0.1", macOf(t, n.Netns, "cni0"))
	setNeighbour(t, n.Netns, "cni0", "10.2.0.5", macOf(t, n.bridged, "eth0"))
	attach(t, n.Netns, "veth1", drops(t), ebpf.AttachTCXIngress)
	c := dialFrom(t, forger, "10.2.0.5", vip4+":53")
	wire, _ := lab.Query("name.example.", dns.TypeA).Pack()
	stop := make(chan struct{})
	var forging sync.WaitGroup
	forging.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = c.Write(wire)
			}
		}
	})
	silent(t, n.bridged, vip4+":53", "name.example.")
	before, _ := n.Scrape(t, metrics).Sum("coredns_dns_requests_total")
	for late := time.Now().Add(time.Minute); ; {
		if now, _ := n.Scrape(t, metrics).Sum("coredns_dns_requests_total"); now > before {
			break
		}
		if time.Now().After(late) {
			t.Fatal("the daemon does not hear the forged queries")
		}
	}
	close(stop)
	forging.Wait()
}

// TestStoppedDaemon: while the daemon hangs, the kernel answers until leases end. It
// answers again afterwards.
func TestStoppedDaemon(t *testing.T) {
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on {", "lease 1s", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	d.Signal(t, syscall.SIGSTOP)
	silent(t, n.routed, vip4+":53", "name.example.")
	d.Signal(t, syscall.SIGCONT)
	n.warm(t, n.routed, vip4+":53", "name.example.")
}

// TestSurge: while a second daemon takes over, no query of any pod is lost.
func TestSurge(t *testing.T) {
	const later = "127.0.0.1:9256" // metrics of the second daemon
	n := newNode(t, fixed)
	old := n.start(t, 2, "fastpath on")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i, pod := range []*lab.Netns{n.routed, n.bridged, n.routed, n.bridged} {
		c := pod.Dial(t, "udp", servers()[i/2])
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := lab.AskOn(c, lab.Query("name.example.", dns.TypeA)); err != nil {
					t.Errorf("%s: %v", pod.Name, err)
					return
				}
			}
		})
	}
	lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Args: []string{"-keep-privileges"},
		Corefile: strings.Replace(corefileWith("fastpath on"), metrics, later, 1),
	})
	n.WaitForMetric(t, later, 2, "nodens_kernel_interfaces")
	old.Signal(t, syscall.SIGTERM)
	if status := old.Wait(t); status != 0 {
		t.Errorf("status %d", status)
	}
	if n.programs(t, "cali1") != 1 {
		t.Error("not one program is left")
	}
	for late := time.Now().Add(time.Minute); ; {
		if sum, _ := n.Scrape(t, later).Sum("nodens_kernel_answers_total"); sum > 0 {
			break
		}
		if time.Now().After(late) {
			t.Fatal("the kernel does not answer for the second daemon")
		}
	}
	close(stop)
	clients.Wait()
}

// programs returns the number of tcx programs on an interface's ingress.
func (n *node) programs(t *testing.T, name string) (count int) {
	t.Helper()
	n.Inside(t, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			count = len(r.Programs)
		}
		return err
	})
	return count
}

// TestKilledDaemon: nothing is left after SIGKILL.
func TestKilledDaemon(t *testing.T) {
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	if n.programs(t, "cali1") != 1 || n.programs(t, "veth1") != 1 || n.programs(t, "eth0") != 0 {
		t.Error("the program is not on the pods' interfaces only")
	}
	d.Kill()
	<-d.Done()
	for late := time.Now().Add(time.Minute); n.programs(t, "cali1")+n.programs(t, "veth1") > 0; {
		if time.Now().After(late) {
			t.Fatal("programs are left after SIGKILL")
		}
	}
	if asks(t, n.routed, vip4+":53", "name.example.") {
		t.Error("the pod gets an answer after SIGKILL")
	}
}

// drops is a tcx program that drops everything.
func drops(t testing.TB) *ebpf.Program {
	t.Helper()
	const shot = 2 // TC_ACT_SHOT
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, shot), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// attach attaches a program to an interface, behind that of nodens.
func attach(t testing.TB, n *lab.Netns, name string, prog *ebpf.Program, to ebpf.AttachType) {
	t.Helper()
	n.Inside(t, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: prog, Attach: to, Anchor: link.Tail()})
		if err == nil {
			t.Cleanup(func() { _ = a.Close() })
		}
		return err
	})
}

// TestOtherPrograms: a program of the CNI on the veth's egress does not see the
// kernel's answers, and one behind ours on the ingress sees all that we pass.
func TestOtherPrograms(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on {", "lease 30s", "}")
	for _, server := range servers() {
		for _, pod := range []*lab.Netns{n.routed, n.bridged} {
			n.warm(t, pod, server, "name.example.")
		}
	}
	prog := drops(t)
	for _, name := range []string{"cali1", "veth1"} {
		attach(t, n.Netns, name, prog, ebpf.AttachTCXEgress)
		attach(t, n.Netns, name, prog, ebpf.AttachTCXIngress)
	}
	for _, server := range servers() {
		for _, pod := range []*lab.Netns{n.routed, n.bridged} {
			if !asks(t, pod, server, "name.example.") {
				t.Errorf("%s: a program on the egress drops the kernel's answer of %s", pod.Name, server)
			}
			if asks(t, pod, server, "other.example.") {
				t.Errorf("%s: the next program did not see a query to %s that the kernel passed", pod.Name, server)
			}
		}
	}
}

// TestStrictPod: the replies pass strict reverse path filters, a firewall in the pod
// that only accepts established connections, and pods without checksum offload.
func TestStrictPod(t *testing.T) {
	n := newNode(t, fixed)
	for _, pod := range []*lab.Netns{n.routed, n.bridged} {
		pod.Sysctl(t, "ipv4/conf/all/rp_filter", "1")
		pod.Sysctl(t, "ipv4/conf/eth0/rp_filter", "1")
		pod.Nft(t, "table inet f { chain input { type filter hook input priority 0; policy drop; ct state established accept; meta l4proto icmpv6 accept; iif lo accept; }; }")
	}
	n.start(t, 2, "fastpath on")
	for _, offload := range []bool{true, false} {
		for _, pod := range []*lab.Netns{n.routed, n.bridged} {
			setOffload(t, pod, offload)
			for _, server := range servers() {
				n.warm(t, pod, server, "name.example.")
			}
		}
	}
}

// setOffload turns checksum offload on a pod's eth0 on or off, for sending and receiving.
func setOffload(t *testing.T, pod *lab.Netns, on bool) {
	t.Helper()
	pod.Inside(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, command := range []uint32{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SRXCSUM} {
			value := ethtoolValue{cmd: command}
			if on {
				value.data = 1
			}
			if err := value.set(fd, "eth0"); err != nil {
				return err
			}
		}
		return nil
	})
}
