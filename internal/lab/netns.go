package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Netns is a network namespace with loopback up. It lives until the end of the
// test and of the processes in it.
type Netns struct {
	Name string // for messages
	f    *os.File
	pods int // made by AddPod
}

// NewNetns makes a namespace with the given addresses, in prefix notation, on
// loopback.
func NewNetns(t testing.TB, name string, prefixes ...string) *Netns {
	t.Helper()
	NeedRoot(t)
	f, err := newNetns()
	if err != nil {
		Skip(t, fmt.Sprintf("make network namespace: %v", err))
	}
	n := &Netns{Name: name, f: f}
	t.Cleanup(func() { _ = f.Close() })
	n.must(t, "configure", func() error {
		// No link-local addresses (1 is none, see ip-sysctl.rst): the kernel
		// would add them later, while a test runs.
		const genMode = "/proc/sys/net/ipv6/conf/default/addr_gen_mode"
		if err := os.WriteFile(genMode, []byte("1"), 0); err != nil && !os.IsNotExist(err) {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	n.AddAddrs(t, "lo", prefixes...)
	return n
}

// newNetns makes a namespace and returns a descriptor that holds it.
func newNetns() (f *os.File, err error) {
	err = elsewhere(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		f, err = os.Open(threadNetns)
		return err
	})
	return f, err
}

// threadNetns refers to the network namespace of the thread that opens it.
const threadNetns = "/proc/thread-self/ns/net"

// elsewhere calls f on a thread that may change its network namespace, and then
// restores the thread's namespace. The thread must not end, because the kernel
// would kill the processes that it started.
func elsewhere(f func() error) error {
	home, err := os.Open(threadNetns)
	if err != nil {
		return err
	}
	defer home.Close()
	runtime.LockOSThread()
	defer func() {
		// If that fails, the thread stays locked, so that no other goroutine runs
		// in the wrong namespace.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Do calls f with the calling thread inside the namespace. Sockets that f opens
// and processes that it starts stay there; goroutines that it starts do not.
func (n *Netns) Do(f func() error) error {
	return elsewhere(func() error {
		if err := unix.Setns(int(n.f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// NetnsOf returns the namespace that f refers to.
func NetnsOf(f *os.File) *Netns { return &Netns{Name: f.Name(), f: f} }

// File refers to the namespace. It is closed at the end of the test.
func (n *Netns) File() *os.File { return n.f }

// Path is that of the namespace while this process lives.
func (n *Netns) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd()) }

// Inside is Do; the test fails if f does.
func (n *Netns) Inside(t testing.TB, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
}

func (n *Netns) must(t testing.TB, what string, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Fatalf("%s: %s: %v", n.Name, what, err)
	}
}

// AddAddrs puts addresses, in prefix notation, on an interface.
func (n *Netns) AddAddrs(t testing.TB, link string, prefixes ...string) {
	t.Helper()
	for _, p := range prefixes {
		n.must(t, "add "+p+" to "+link, func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			if a.IP.To4() != nil {
				return netlink.AddrAdd(l, a)
			}
			a.Flags = unix.IFA_F_NODAD // no duplicate address detection
			if err := netlink.AddrAdd(l, a); err != nil || l.Attrs().RawFlags&unix.IFF_RUNNING == 0 {
				return err
			}
			return WaitLocalRoute(a.IP)
		})
	}
}

// WaitLocalRoute polls until an IPv6 address can be reached: the kernel adds its
// route in a worker, after the address.
func WaitLocalRoute(ip net.IP) error {
	local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(128, 128)}}
	for late := time.Now().Add(waitTimeout); time.Now().Before(late); time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		if err != nil || len(routes) > 0 {
			return err
		}
	}
	return fmt.Errorf("no local route of %v", ip)
}

// AddRoute routes dst, a prefix, through a neighbour.
func (n *Netns) AddRoute(t testing.TB, dst, via string) {
	t.Helper()
	n.must(t, "add route to "+dst, func() error {
		_, d, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: d, Gw: net.ParseIP(via)})
	})
}

// SetLink sets an interface up or down.
func (n *Netns) SetLink(t testing.TB, link string, up bool) {
	t.Helper()
	n.must(t, "set "+link, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// Join makes a veth pair between link in n and peerLink in peer, both up, each
// with its addresses in prefix notation.
func (n *Netns) Join(t testing.TB, link string, prefixes []string, peer *Netns, peerLink string, peerPrefixes []string) {
	t.Helper()
	n.must(t, "make veth "+link, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = link
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: peerLink, PeerNamespace: netlink.NsFd(int(peer.f.Fd()))})
		if errors.Is(err, unix.EOPNOTSUPP) {
			Skip(t, "the kernel has no veth driver")
		}
		return err
	})
	n.SetLink(t, link, true)
	peer.SetLink(t, peerLink, true)
	n.AddAddrs(t, link, prefixes...)
	peer.AddAddrs(t, peerLink, peerPrefixes...)
}

// DialContext connects from inside the namespace. address has an IP address, not
// a name.
func (n *Netns) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	derr := n.Do(func() error {
		d := net.Dialer{Timeout: 10 * time.Second, FallbackDelay: -1}
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, derr
}

// Dial connects from inside the namespace. The connection is closed at the end of
// the test.
func (n *Netns) Dial(t testing.TB, network, address string) net.Conn {
	t.Helper()
	c, err := n.DialContext(t.Context(), network, address)
	if err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ListenPacket opens an unconnected UDP socket in the namespace.
func (n *Netns) ListenPacket(t testing.TB, network, address string) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	n.must(t, "listen", func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Listen opens a listening socket in the namespace.
func (n *Netns) Listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	var l net.Listener
	n.must(t, "listen", func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return l
}
