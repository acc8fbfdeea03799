package netsetup

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	vishvananda "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/netsetup/internal/netns"
	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
)

// daemonMode is an environment variable with a link type. If it is set, the test
// binary runs as the daemon: see TestMain.
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
// service addresses, prints "serving" and runs until it is killed.
func daemon(linkType string) error {
	const fd = 3
	h, err := New(Config{Addrs: nstest.Services, Generation: fmt.Sprint("pid-", os.Getpid()), NetNS: fd, linkType: linkType})
	if err != nil {
		return err
	}
	if err := h.Addresses.Ensure(context.Background()); err != nil {
		return err
	}
	for _, ip := range nstest.Services {
		err := netns.Do(fd, func() error {
			if err := waitLocalRoute(ip); err != nil {
				return err
			}
			_, err := nstest.Serve(netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := h.Rules.Ensure(context.Background()); err != nil {
		return err
	}
	fmt.Println("serving")
	_, err = io.Copy(io.Discard, os.Stdin) // until the parent kills this process or ends
	return err
}

// cluster is a node and a pod, and the networks to query over.
type cluster struct {
	nstest.Cluster
	networks []string
}

func newCluster(t *testing.T, node *namespace) cluster {
	t.Helper()
	return cluster{nstest.NewCluster(t, node.Namespace), []string{"udp", "tcp"}}
}

// ensureAddresses returns when the addresses of h can be reached.
func (ns *namespace) ensureAddresses(t *testing.T, h *Host) {
	t.Helper()
	must(t, h.Addresses.Ensure)
	ns.waitLocalRoutes(t, h.cfg.Addrs...)
}

func (ns *namespace) waitLocalRoutes(t *testing.T, addrs ...netip.Addr) {
	t.Helper()
	for _, ip := range addrs {
		ns.Inside(t, func() error { return waitLocalRoute(ip) })
	}
}

// waitLocalRoute waits until ip can be reached in the thread's namespace.
func waitLocalRoute(ip netip.Addr) error {
	if ip.Is4() {
		return nil // the kernel adds the route with the address
	}
	return lab.WaitLocalRoute(ip.AsSlice())
}

// answers queries every service address, from the pod and from the node, and
// compares the names of the servers. An empty fromNode accepts any name.
func (l cluster) answers(t *testing.T, fromPod, fromNode string) {
	t.Helper()
	for _, ip := range nstest.Services {
		for _, network := range l.networks {
			if got := l.Pod.Query(network, ip); got != fromPod {
				t.Errorf("pod queries %s over %s: %q answers, want %q", ip, network, got, fromPod)
			}
			if got := l.Node.Query(network, ip); fromNode != "" && got != fromNode {
				t.Errorf("node queries %s over %s: %q answers, want %q", ip, network, got, fromNode)
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
	dup, err := unix.FcntlInt(uintptr(ns.FD()), unix.F_DUPFD_CLOEXEC, 0)
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

// A killed daemon leaves its address on the link. Queries must reach the service
// proxy at once, and later the next daemon.
func TestServiceAddressFailsOpenOnKill(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		l := newCluster(t, ns)
		l.answers(t, "backend", "backend")
		for range 2 {
			d := startDaemon(t, ns, m)
			l.answers(t, "cache", "cache")
			check(t, d.Process.Kill())
			_ = d.Wait() // its descriptors are closed now
			if !ns.HasAddr(t, nstest.Services[0]) {
				t.Fatal("the address was removed with the daemon: this test cannot fail")
			}
			l.answers(t, "backend", "backend")
		}
		check(t, Teardown(t.Context(), Config{NetNS: ns.FD(), linkType: m.linkType}))
		l.answers(t, "backend", "backend")
	})
}

// A process that runs but does not listen receives no pod's query, even if
// another program listens on the wildcard address.
func TestServiceAddressFollowsListener(t *testing.T) {
	ns := newNamespace(t)
	l := newCluster(t, ns)
	cfg := ns.config(onLo, "g1")
	cfg.Addrs = nstest.Services
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	must(t, h.Rules.Ensure)
	l.answers(t, "backend", "")
	stopOther := ns.Serve(t, netip.MustParseAddrPort("[::]:53"), "other")
	l.answers(t, "backend", "")
	stopOther()
	var stops []func()
	for _, ip := range nstest.Services {
		stops = append(stops, ns.Serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache"))
	}
	l.answers(t, "cache", "cache")
	for _, stop := range stops {
		stop()
	}
	l.answers(t, "backend", "")
	must(t, h.Rules.Remove)
	l.answers(t, "backend", "backend")
}

func TestWildcardListenerOfOurs(t *testing.T) {
	ns := newNamespace(t)
	l := newCluster(t, ns)
	cfg := ns.config(onLo, "g1")
	cfg.Addrs = nstest.Services
	l.networks = []string{"tcp"} // over UDP, this listener would answer from another address
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	must(t, h.Rules.Ensure)
	stop := ns.Serve(t, netip.MustParseAddrPort("[::]:53"), "cache")
	l.answers(t, "backend", "") // the rules take it for another program's
	for range 2 {
		check(t, h.Rules.SetWildcardListeners(true))
		l.answers(t, "cache", "cache")
	}
	reader := ns.config(onLo, "")
	reader.Addrs = nstest.Services
	wantOK(t, newHost(t, reader))
	stop()
	l.answers(t, "backend", "")
}

// Older kernels lack expressions and flags.
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
			l := newCluster(t, ns)
			cfg := ns.config(onLo, "g1")
			cfg.Addrs = nstest.Services
			cfg.noSocketExpr, cfg.noOwner = tt.noSocketExpr, tt.noOwner
			h := newHost(t, cfg)
			ns.ensureAddresses(t, h)
			must(t, h.Rules.Ensure)
			var stops []func()
			for _, ip := range nstest.Services {
				stops = append(stops, ns.Serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache"))
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

// No packet of the local IPs may enter connection tracking.
func TestLocalTrafficIsUntracked(t *testing.T) {
	ns := newNamespace(t)
	l := newCluster(t, ns)
	local := netip.MustParseAddr("169.254.20.10")
	cfg := ns.config(onLo, "g1")
	cfg.Addrs = append([]netip.Addr{local}, nstest.Services...)
	h := newHost(t, cfg)
	ns.ensureAddresses(t, h)
	ct, err := netlink.NewHandleAt(vishvananda.NsHandle(ns.FD()), unix.NETLINK_NETFILTER)
	check(t, err)
	t.Cleanup(ct.Close)
	for _, ip := range cfg.Addrs {
		ns.Serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
	}
	tracked := func() (n int) {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := ct.ConntrackTableList(netlink.ConntrackTable, family)
			check(t, err)
			n += len(flows)
		}
		return n
	}
	if l.Pod.Query("udp", local) != "cache" || tracked() == 0 {
		t.Fatal("without rules nothing is tracked: this test cannot fail")
	}
	must(t, h.Rules.Ensure)
	_, err = ct.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, everyFlow{})
	check(t, err)
	l.answers(t, "cache", "cache")
	for _, from := range []*nstest.Namespace{l.Pod, l.Node} {
		for _, network := range []string{"udp", "tcp"} {
			if got := from.Query(network, local); got != "cache" {
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
