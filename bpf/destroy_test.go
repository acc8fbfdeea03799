package bpf

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
	"golang.org/x/sys/unix"
)

func TestDestroySockets(t *testing.T) {
	p := newPod(t)
	netns := p.ns.File()
	connected := map[string]struct {
		network string
		peer    netip.AddrPort
		want    unix.Errno
	}{
		"IPv4":      {"udp4", ap(target4), unix.ECONNABORTED},
		"mapped":    {"udp6", netip.AddrPortFrom(netip.AddrFrom16(ap(target4).Addr().As16()), 10053), unix.ECONNABORTED},
		"IPv6":      {"udp6", ap(target6), 0},
		"elsewhere": {"udp4", ap(core4), 0},
		"same port": {"udp4", ap("10.0.0.3:10053"), unix.ECONNREFUSED}, // nothing listens there
	}
	for name, c := range connected {
		p.must(t, request{Op: "socket", Socket: name, Network: c.network})
		p.must(t, request{Op: "connect", Socket: name, Addr: c.peer})
	}
	p.must(t, request{Op: "socket", Socket: "unconnected", Network: "udp4"})
	p.must(t, request{Op: "send", Socket: "unconnected", Addr: ap(target4), Payload: "q"})
	destroy := func(peer string, want int) {
		t.Helper()
		if n, err := destroySockets(netns, ap(peer), UDP); n != want || err != nil {
			t.Errorf("destroyed %d sockets to %s, %v, want %d", n, peer, err, want)
		}
	}
	destroy(target4, 2)
	for name, c := range connected {
		p.call(t, request{Op: "write", Socket: name, Payload: "q"})
		if got := p.call(t, request{Op: "recv", Socket: name}).Errno; got != c.want {
			t.Errorf("%s: recv: %v, want %v", name, got, c.want)
		}
	}
	if got := p.must(t, request{Op: "recv", Socket: "unconnected"}); got.Payload != "target:q" {
		t.Errorf("unconnected socket: %+v", got)
	}
	destroy(target4, 0)
	destroy(target6, 1)
	p.must(t, request{Op: "socket", Socket: "tcp", Network: "tcp4"})
	p.must(t, request{Op: "connect", Socket: "tcp", Addr: ap(target4)})
	destroy(target4, 0)
	if n, err := destroySockets(netns, ap(target4), UDP, TCP); n != 1 || err != nil {
		t.Errorf("destroyed %d TCP sockets, %v, want 1", n, err)
	}
	if got := p.call(t, request{Op: "recv", Socket: "tcp"}).Errno; got != unix.ECONNABORTED {
		t.Errorf("TCP: recv: %v, want %v", got, unix.ECONNABORTED)
	}
	if n, err := destroySockets(netns, netip.AddrPort{}, UDP); err == nil {
		t.Errorf("destroyed %d sockets to an unused address", n)
	}
}

// A nil namespace means that of the calling thread.
func TestDestroySocketsHere(t *testing.T) {
	p := newPod(t)
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	p.must(t, request{Op: "connect", Socket: "u", Addr: ap(target4)})
	p.ns.Inside(t, func() error {
		if n, err := destroySockets(nil, ap(target4), UDP); n != 1 || err != nil {
			t.Errorf("destroyed %d sockets, %v, want 1", n, err)
		}
		return nil
	})
}

// DestroyPodSockets reaches the processes of two pods, but neither the test's own
// namespace nor processes outside kubepods.
func TestDestroyPodSockets(t *testing.T) {
	p := newPod(t)
	inside := func(ns *lab.Netns, cgroup string) *agent {
		a := startAgent(t, ns, cgroup)
		a.must(t, request{Op: "socket", Socket: "u", Network: "udp4", Wait: lossWait})
		a.must(t, request{Op: "connect", Socket: "u", Addr: ap(target4)})
		return a
	}
	ns2 := lab.NewNetns(t, "pod2")
	ns2.AddAddrs(t, "lo", "10.0.0.2/32")
	pods := []*agent{inside(p.ns, p.cgroup), inside(ns2, lab.MakeCgroup(t, filepath.Join(p.cgroup, "container")))}
	ns3 := lab.NewNetns(t, "pod3")
	ns3.AddAddrs(t, "lo", "10.0.0.2/32")
	other := inside(ns3, filepath.Dir(p.kubepods))

	threads := lab.MakeCgroup(t, filepath.Join(lab.MakeCgroup(t, filepath.Join(p.kubepods, "a")), "threads")) // its cgroup.procs cannot be read
	check(t, os.WriteFile(filepath.Join(threads, "cgroup.type"), []byte("threaded"), 0))

	if n, err := DestroyPodSockets(p.kubepods, "/proc", ap(target4), UDP); n != 2 || err != nil {
		t.Errorf("destroyed %d sockets, %v, want 2", n, err)
	}
	for _, a := range pods {
		if got := a.call(t, request{Op: "recv", Socket: "u"}).Errno; got != unix.ECONNABORTED {
			t.Errorf("recv in a pod: %v, want %v", got, unix.ECONNABORTED)
		}
	}
	if got := other.call(t, request{Op: "recv", Socket: "u"}).Errno; got != unix.EAGAIN {
		t.Errorf("recv outside: %v, want %v", got, unix.EAGAIN)
	}
	p.ns.Inside(t, func() error { // with the pod's namespace as the caller's own
		if n, err := DestroyPodSockets(p.kubepods, "/proc", ap(target4), UDP); n != 0 || err != nil {
			t.Errorf("destroyed %d sockets, %v", n, err)
		}
		return nil
	})
	if n, err := DestroyPodSockets(filepath.Join(p.kubepods, "gone"), "/proc", ap(target4), UDP); n != 0 || err != nil {
		t.Errorf("destroyed %d sockets of no cgroup, %v", n, err)
	}
}
