package netsetup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The pretended cluster: a service proxy that sends the DNS service to a
// backend, and a pod behind a veth pair.
var (
	services = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	backends = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	nodeIPs  = []string{"10.0.1.1/24", "fd00:1::1/64"}
	podIPs   = []string{"10.0.1.5/24", "fd00:1::5/64"}
)

const backendPort = 5353

// daemonMode, in the environment, makes the test binary act as the daemon: see
// TestMain. Its value is a link type.
const daemonMode = "NETSETUP_TEST_DAEMON"

func TestMain(m *testing.M) {
	linkType, ok := os.LookupEnv(daemonMode)
	if !ok {
		os.Exit(m.Run())
	}
	if err := daemon(linkType); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// daemon sets up the host in the namespace of descriptor 3, serves on the
// service addresses, says so and stays until it is killed.
func daemon(linkType string) error {
	const netNS = 3
	h, err := New(Config{Addrs: services, Generation: fmt.Sprint("pid-", os.Getpid()), NetNS: netNS, linkType: linkType})
	if err != nil {
		return err
	}
	if err := h.EnsureAddresses(context.Background()); err != nil {
		return err
	}
	nl, err := netlink.NewHandleAt(netns.NsHandle(netNS), unix.NETLINK_ROUTE) // others need modules
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := awaitLocalRoutes(nl, services...); err != nil {
		return err
	}
	for _, ip := range services {
		err := inNetNS(netNS, func() error {
			_, err := serve(netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := h.EnsureRules(context.Background()); err != nil {
		return err
	}
	fmt.Println("serving")
	_, err = io.Copy(io.Discard, os.Stdin) // until the parent ends, should it not kill us
	return err
}

// serve answers every UDP datagram and TCP connection on local with name.
func serve(local netip.AddrPort, name string) (close func(), err error) {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, err
	}
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return nil, errors.Join(err, udp.Close())
	}
	go func() {
		b := make([]byte, 512)
		for {
			_, from, err := udp.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort([]byte(name), from)
		}
	}()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
	return func() { _ = udp.Close(); _ = tcp.Close() }, nil
}

// ask returns who answers on ip, asked from ns.
func (ns *namespace) ask(network string, ip netip.Addr) string {
	return ns.askWithin(30*time.Second, network, netip.AddrPortFrom(ip, DefaultDNSPort))
}

// askWithin returns an error's text for an answer that has not come in time.
func (ns *namespace) askWithin(timeout time.Duration, network string, to netip.AddrPort) string {
	answer := make([]byte, 512)
	n := 0
	err := inNetNS(ns.fd, func() error {
		c, err := net.DialTimeout(network, to.String(), timeout)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "question"); err != nil {
			return err
		}
		n, err = c.Read(answer)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return string(answer[:n])
}

// lab is a node and a pod.
type lab struct {
	node, pod *namespace
	networks  []string // to ask over
}

func newLab(t *testing.T, node *namespace) lab {
	t.Helper()
	l := lab{node: node, pod: newNamespace(t), networks: []string{"udp", "tcp"}}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lxc0"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(l.pod.fd)}
	check(t, node.nl.LinkAdd(veth))
	l.node.addTo(t, "lxc0", nodeIPs...)
	l.pod.addTo(t, "eth0", podIPs...)
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		_, dst, err := net.ParseCIDR(all)
		check(t, err)
		gw := netip.MustParsePrefix(nodeIPs[i]).Addr()
		check(t, l.pod.nl.RouteAdd(&netlink.Route{Dst: dst, Gw: gw.AsSlice()}))
		uplink := netip.MustParsePrefix(podIPs[i]).Addr() // the node's default route; nothing is sent there
		check(t, node.nl.RouteAdd(&netlink.Route{Dst: dst, Gw: uplink.AsSlice()}))
	}
	for _, ip := range backends {
		node.addTo(t, "lo", netip.PrefixFrom(ip, ip.BitLen()).String())
		node.serve(t, netip.AddrPortFrom(ip, backendPort), "backend")
	}
	node.serviceProxy(t)
	return l
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addTo brings a link up with addresses.
func (ns *namespace) addTo(t *testing.T, link string, prefixes ...string) netlink.Link {
	t.Helper()
	l, err := ns.nl.LinkByName(link)
	check(t, err)
	check(t, ns.nl.LinkSetUp(l))
	for _, p := range prefixes {
		a, err := netlink.ParseAddr(p)
		check(t, err)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		check(t, ns.nl.AddrAdd(l, a))
		if link == "lo" { // others may have to wait for their carrier
			check(t, awaitLocalRoutes(ns.nl, netip.MustParsePrefix(p).Addr()))
		}
	}
	return l
}

// ensureAddresses returns when h's addresses can be reached.
func (ns *namespace) ensureAddresses(t *testing.T, h *Host) {
	t.Helper()
	must(t, h.EnsureAddresses)
	check(t, awaitLocalRoutes(ns.nl, h.cfg.Addrs...))
}

// awaitLocalRoutes polls until the kernel has the local routes of IPv6
// addresses: it makes them in a worker of its own, after the addresses, and
// loses what comes before.
func awaitLocalRoutes(nl *netlink.Handle, addrs ...netip.Addr) error {
	end := time.Now().Add(30 * time.Second)
	for _, a := range addrs {
		for a.Is6() {
			local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)}}
			routes, err := nl.RouteListFiltered(netlink.FAMILY_V6, local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
			if err != nil {
				return fmt.Errorf("list local routes of %v: %w", a, err)
			}
			if len(routes) > 0 {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("no local route of %v", a)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func (ns *namespace) serve(t *testing.T, local netip.AddrPort, name string) (stop func()) {
	t.Helper()
	ns.inside(t, func() (err error) {
		stop, err = serve(local, name)
		return err
	})
	t.Cleanup(stop)
	return stop
}

// serviceProxy translates the services' DNS port to the backends, for pods and
// for the node, as kube-proxy does.
func (ns *namespace) serviceProxy(t *testing.T) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.fd))
	check(t, err)
	table := conn.AddTable(inetTable("kube-proxy"))
	for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput} {
		c := conn.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: hook, Priority: nftables.ChainPriorityNATDest,
		})
		for i, ip := range services {
			for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
				conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: translate(ip, proto, backends[i])})
			}
		}
	}
	check(t, conn.Flush())
}

func translate(ip netip.Addr, proto byte, backend netip.Addr) []expr.Any {
	match := jumpOn(ip, addrDst, "").exprs
	match = append(match[:len(match)-1], portIs(proto, portDst, DefaultDNSPort)...)
	family := uint32(unix.NFPROTO_IPV4)
	if ip.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return append(match,
		&expr.Immediate{Register: 1, Data: backend.AsSlice()},
		&expr.Immediate{Register: 2, Data: []byte{backendPort >> 8, backendPort & 0xff}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2, Specified: true})
}

// answers asks every service address over both protocols, from the pod and
// from the node, and compares.
func (l lab) answers(t *testing.T, fromPod, fromNode string) {
	t.Helper()
	for _, ip := range services {
		for _, network := range l.networks {
			if got := l.pod.ask(network, ip); got != fromPod {
				t.Errorf("pod asks %s over %s: %q answers, want %q", ip, network, got, fromPod)
			}
			if got := l.node.ask(network, ip); fromNode != "" && got != fromNode {
				t.Errorf("node asks %s over %s: %q answers, want %q", ip, network, got, fromNode)
			}
		}
	}
}

// startDaemon runs this binary as the daemon and returns when it serves.
func startDaemon(t *testing.T, ns *namespace, m mode) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), daemonMode+"="+m.linkType)
	dup, err := unix.FcntlInt(uintptr(ns.fd), unix.F_DUPFD_CLOEXEC, 0)
	check(t, err)
	f := os.NewFile(uintptr(dup), "netns")
	defer f.Close()
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "serving\n" {
		t.Fatalf("daemon: %q, %v", line, err)
	}
	return cmd
}

// A daemon that is killed leaves its address on the link; the queries must go
// the service proxy's way at once, and back to the next daemon.
func TestServiceAddressFailsOpenOnKill(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		l := newLab(t, ns)
		l.answers(t, "backend", "backend")
		for range 2 {
			d := startDaemon(t, ns, m)
			l.answers(t, "cache", "cache")
			check(t, d.Process.Kill())
			_ = d.Wait() // its descriptors are closed now
			if !ns.hasAddr(t, services[0]) {
				t.Fatal("the address went with the daemon: nothing is tested")
			}
			l.answers(t, "backend", "backend")
		}
		check(t, Teardown(t.Context(), Config{NetNS: ns.fd, linkType: m.linkType}))
		l.answers(t, "backend", "backend")
	})
}

func (ns *namespace) hasAddr(t *testing.T, ip netip.Addr) bool {
	t.Helper()
	addrs, err := ns.nl.AddrList(nil, netlink.FAMILY_ALL)
	check(t, err)
	for _, a := range addrs {
		if a.IP.Equal(ip.AsSlice()) {
			return true
		}
	}
	return false
}

// A process that lives but does not listen keeps no pod's query, not even where
// a foreign socket listens on the wildcard address.
func TestServiceAddressFollowsListener(t *testing.T) {
	ns := newNamespace(t)
	l := newLab(t, ns)
	cfg := ns.config(modes[1], "g1")
	cfg.Addrs = services
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	must(t, h.EnsureRules)
	l.answers(t, "backend", "")
	stopForeign := ns.serve(t, netip.MustParseAddrPort("[::]:53"), "foreign")
	l.answers(t, "backend", "")
	stopForeign()
	var stops []func()
	for _, ip := range services {
		stops = append(stops, ns.serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache"))
	}
	l.answers(t, "cache", "cache")
	for _, stop := range stops {
		stop()
	}
	l.answers(t, "backend", "")
	must(t, h.RemoveRules)
	l.answers(t, "backend", "backend")
}

func TestWildcardListenerOfOurs(t *testing.T) {
	ns := newNamespace(t)
	l := newLab(t, ns)
	cfg := ns.config(modes[1], "g1")
	cfg.Addrs = services
	l.networks = []string{"tcp"} // over UDP our plain listener would answer from another address
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	must(t, h.EnsureRules)
	stop := ns.serve(t, netip.MustParseAddrPort("[::]:53"), "cache")
	l.answers(t, "backend", "") // somebody else's, for all that the rules know
	for range 2 {
		check(t, h.SetWildcardListeners(true))
		l.answers(t, "cache", "cache")
	}
	reader := ns.config(modes[1], "")
	reader.Addrs = services
	wantOK(t, newHost(t, reader))
	stop()
	l.answers(t, "backend", "")
}

// The older kernels' ways, with the expressions that they lack left out.
func TestServiceAddressOnOldKernels(t *testing.T) {
	for _, tt := range []struct {
		name                          string
		noSocketExpr, noOwner         bool
		alivePod, aliveNode, deadPods string
	}{
		{"no socket expression", true, false, "cache", "cache", "backend"},
		{"no owner", false, true, "cache", "backend", "backend"},
		{"neither", true, true, "backend", "backend", "backend"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := newNamespace(t)
			l := newLab(t, ns)
			cfg := ns.config(modes[1], "g1")
			cfg.Addrs = services
			h := newHost(t, cfg)
			h.noSocketExpr, h.noOwner = tt.noSocketExpr, tt.noOwner
			ns.ensureAddresses(t, h)
			must(t, h.EnsureRules)
			var stops []func()
			for _, ip := range services {
				stops = append(stops, ns.serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache"))
			}
			l.answers(t, tt.alivePod, tt.aliveNode)
			for _, stop := range stops {
				stop()
			}
			check(t, h.Close()) // as the kernel does for a dead process
			l.answers(t, tt.deadPods, "backend")
		})
	}
}

// Nothing of the local IPs' traffic may enter connection tracking.
func TestLocalTrafficIsUntracked(t *testing.T) {
	ns := newNamespace(t)
	l := newLab(t, ns)
	local := netip.MustParseAddr("169.254.20.10")
	cfg := ns.config(modes[1], "g1")
	cfg.Addrs = append([]netip.Addr{local}, services...)
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	ct, err := netlink.NewHandleAt(netns.NsHandle(ns.fd), unix.NETLINK_NETFILTER)
	check(t, err)
	t.Cleanup(ct.Close)
	for _, ip := range cfg.Addrs {
		ns.serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
	}
	tracked := func() (n int) {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := ct.ConntrackTableList(netlink.ConntrackTable, family)
			check(t, err)
			n += len(flows)
		}
		return n
	}
	if l.pod.ask("udp", local) != "cache" || tracked() == 0 {
		t.Fatal("without rules nothing is tracked: this test could not fail")
	}
	must(t, h.EnsureRules)
	_, err = ct.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, everyFlow{})
	check(t, err)
	l.answers(t, "cache", "cache")
	for _, from := range []*namespace{l.pod, l.node} {
		for _, network := range []string{"udp", "tcp"} {
			if got := from.ask(network, local); got != "cache" {
				t.Errorf("%s to %s: %s", network, local, got)
			}
		}
	}
	if n := tracked(); n != 0 {
		t.Errorf("%d flows are tracked", n)
	}
}

type everyFlow struct{}

func (everyFlow) MatchConntrackFlow(*netlink.ConntrackFlow) bool { return true }
