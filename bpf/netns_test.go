package bpf

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespace is a fresh network namespace with lo up. It has no name and lives as
// long as its descriptor.
type namespace struct {
	fd int
	nl *netlink.Handle
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	ns := &namespace{}
	onThread(func() error {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			return err
		}
		if ns.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		ns.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}).check(t)
	t.Cleanup(func() {
		ns.nl.Close()
		_ = unix.Close(ns.fd)
	})
	lo, err := ns.nl.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.nl.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	return ns
}

// addresses puts addresses on a link.
func (ns *namespace) addresses(t testing.TB, link string, addrs ...string) {
	t.Helper()
	l, err := ns.nl.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := ns.nl.AddrAdd(l, addr); err != nil {
			t.Fatalf("add %s to %s: %v", a, link, err)
		}
		if addr.IP.To4() == nil {
			ns.awaitLocalRoute(t, addr.IP)
		}
	}
}

// awaitLocalRoute polls until an IPv6 address can be reached in its namespace:
// the kernel makes the route in a worker of its own, after the address.
func (ns *namespace) awaitLocalRoute(t testing.TB, ip net.IP) {
	t.Helper()
	local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(128, 128)}}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		routes, err := ns.nl.RouteListFiltered(netlink.FAMILY_V6, local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		check(t, err)
		if len(routes) > 0 {
			return
		}
	}
	t.Fatalf("no local route of %v", ip)
}

type threadError struct{ err error }

func (e threadError) check(t testing.TB) {
	t.Helper()
	if e.err != nil {
		t.Fatal(e.err)
	}
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) threadError {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is discarded
		done <- f()
	}()
	return threadError{<-done}
}

// inside runs f on a thread in the namespace. Sockets made and processes started
// by f stay in it.
func (ns *namespace) inside(t testing.TB, f func() error) {
	t.Helper()
	onThread(func() error {
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	}).check(t)
}

// serve answers UDP and TCP at addr in the namespace until the test ends; see
// respond.
func (ns *namespace) serve(t testing.TB, addr, name string) {
	t.Helper()
	var udp *net.UDPConn
	var tcp *net.TCPListener
	ns.inside(t, func() (err error) {
		ap := netip.MustParseAddrPort(addr)
		if udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(ap)); err != nil {
			return err
		}
		tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
		return err
	})
	stop := answer(udp, tcp, name)
	t.Cleanup(stop)
}

// answer serves until the returned function is called, which waits.
func answer(udp *net.UDPConn, tcp *net.TCPListener, name string) (stop func()) {
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort(respond(name, buf[:n]), from)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 2048)
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			if n, err := c.Read(buf); err == nil {
				_, _ = c.Write(respond(name, buf[:n]))
			}
			_ = c.Close()
		}
	}()
	return func() {
		_ = udp.Close()
		_ = tcp.Close()
		<-done
		<-done
	}
}

// veth joins two namespaces by a pair of links, up.
func veth(t testing.TB, a *namespace, nameA string, b *namespace, nameB string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	err := a.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.fd)})
	if errors.Is(err, unix.EOPNOTSUPP) {
		skip(t, "the kernel has no veth driver")
	}
	check(t, err)
	for ns, name := range map[*namespace]string{a: nameA, b: nameB} {
		l, err := ns.nl.LinkByName(name)
		check(t, err)
		check(t, ns.nl.LinkSetUp(l))
	}
}

// route adds an IPv4 route on a link; gw may be empty.
func (ns *namespace) route(t testing.TB, dst, link, gw string) {
	t.Helper()
	l, err := ns.nl.LinkByName(link)
	check(t, err)
	_, prefix, err := net.ParseCIDR(dst)
	check(t, err)
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix, Scope: netlink.SCOPE_LINK}
	if gw != "" {
		r.Gw, r.Scope = net.ParseIP(gw), netlink.SCOPE_UNIVERSE
	}
	check(t, ns.nl.RouteAdd(r))
}

// sysctl sets a setting below /proc/sys/net.
func (ns *namespace) sysctl(t testing.TB, name, value string) {
	t.Helper()
	ns.inside(t, func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}
