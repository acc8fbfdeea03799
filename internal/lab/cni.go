package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CNIMode is how the CNI routes packets from a pod. It mirrors enum mode of
// lab.bpf.c.
type CNIMode uint32

// The modes of Cilium: the host's stack; a FIB lookup, since 1.16.5; neither; and
// a FIB lookup that falls back to the stack, since 1.18.2.
const (
	RouteLegacy CNIMode = iota
	RouteFIB
	RouteSkipFIB
	RouteFIBOrStack
)

// Addresses on a CNINode.
const (
	PodIP      = "10.0.1.5"
	ClusterDNS = "10.96.0.10" // the address of a Service
	Endpoint   = "10.0.2.7"   // the address of an endpoint
)

// CNINode is a node with a pod and the network outside. The CNI's program handles
// what the pod's veth receives.
//
//	pod 10.0.1.5 ── lxc0 │ node │ up0 10.0.0.1 ── 10.0.0.2 │ outside
//
// The node has 10.0.1.1, the pod's gateway. Outside are two DNS servers that
// answer A queries with their own address.
type CNINode struct {
	Pod, Node, Outside *Netns
	Kubepods           string // the cgroup of all pods
	PodCgroup          string // the cgroup of the pod
	Cluster, Core      *Upstream
	objs               cniObjects
}

type cniObjects struct {
	FromPod  *ebpf.Program `ebpf:"from_pod"`
	CountVIP *ebpf.Program `ebpf:"count_vip"`
	Dropped  *ebpf.Map     `ebpf:"dropped"`
	Leaked   *ebpf.Map     `ebpf:"leaked"`
}

// NewCNINode makes a node whose pods use vip as nameserver. The test or a daemon
// puts vip, an IPv4 address, on the node.
func NewCNINode(t testing.TB, mode CNIMode, vip string) *CNINode {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(cniObject())
	if err != nil {
		t.Fatal(err)
	}
	n := WireCNINode(t, spec, mode, vip)
	answer := func(ip string) func(*dns.Msg) *dns.Msg {
		return func(q *dns.Msg) *dns.Msg {
			if q.Question[0].Qtype == dns.TypeA {
				return Reply(q, q.Question[0].Name+" 30 IN A "+ip)
			}
			return Reply(q)
		}
	}
	n.Cluster = StartUpstream(t, n.Outside, ClusterDNS+":53", answer(ClusterDNS))
	n.Core = StartUpstream(t, n.Outside, Endpoint+":53", answer(Endpoint))
	return n
}

// WireCNINode is NewCNINode without the DNS servers. spec is the CNI, lab.bpf.c.
func WireCNINode(t testing.TB, spec *ebpf.CollectionSpec, mode CNIMode, vip string) *CNINode {
	t.Helper()
	NeedBPF(t)
	n := &CNINode{Pod: NewNetns(t, "pod"), Node: NewNetns(t, "node"), Outside: NewNetns(t, "outside"), Kubepods: NewKubepods(t)}
	n.PodCgroup = MakeCgroup(t, filepath.Join(n.Kubepods, "pod0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01"))
	n.wire(t)
	n.attach(t, spec, mode, vip)
	return n
}

func (n *CNINode) wire(t testing.TB) {
	t.Helper()
	n.Node.Join(t, "lxc0", nil, n.Pod, "eth0", []string{PodIP + "/32"})
	n.Node.Join(t, "up0", []string{NodeIP + "/24"}, n.Outside, "eth0", []string{OutsideIP + "/24"})
	n.Node.Join(t, "cilium_host", []string{"10.0.1.1/32"}, n.Node, "cilium_net", nil)
	n.Outside.AddAddrs(t, "lo", ClusterDNS+"/32", Endpoint+"/32")
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/lxc0/rp_filter": "0",
		"ipv4/conf/up0/rp_filter": "0", "ipv4/conf/lxc0/proxy_arp": "1",
	} {
		n.Node.Sysctl(t, name, value)
	}
	n.Node.addLinkRoute(t, PodIP+"/32", "lxc0")
	n.Node.AddRoute(t, "0.0.0.0/0", OutsideIP)
	n.Pod.addLinkRoute(t, "10.0.1.1/32", "eth0")
	n.Pod.AddRoute(t, "0.0.0.0/0", "10.0.1.1")
	n.Outside.AddRoute(t, "10.0.1.0/24", NodeIP)
}

// addLinkRoute routes dst, a prefix, to the neighbours on a link.
func (n *Netns) addLinkRoute(t testing.TB, dst, link string) {
	t.Helper()
	n.must(t, "add route to "+dst, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		d, err := netlink.ParseIPNet(dst)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: d, Scope: netlink.SCOPE_LINK})
	})
}

// attach puts the CNI's program on the pod's link, and a counter of packets to
// the VIP outside.
func (n *CNINode) attach(t testing.TB, spec *ebpf.CollectionSpec, mode CNIMode, vip string) {
	t.Helper()
	var uplink int
	n.Node.must(t, "find up0", func() error {
		l, err := netlink.LinkByName("up0")
		if err == nil {
			uplink = l.Attrs().Index
		}
		return err
	})
	for name, value := range map[string]any{
		"mode": uint32(mode), "uplink": uint32(uplink), "vip": word(vip), "host_addrs": [2]uint32{word(NodeIP), word("10.0.1.1")},
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if err := spec.LoadAndAssign(&n.objs, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{n.objs.FromPod, n.objs.CountVIP, n.objs.Dropped, n.objs.Leaked} {
			_ = c.Close()
		}
	})
	n.Node.attachIngress(t, "lxc0", n.objs.FromPod)
	n.Outside.attachIngress(t, "eth0", n.objs.CountVIP)
}

// cniObject is the path of an object that is compiled and committed in package
// bpf.
func cniObject() string {
	name := "lab_bpfel_test.o"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		name = "lab_bpfeb_test.o"
	}
	return filepath.Join("..", "..", "bpf", name)
}

// word is an IPv4 address in network byte order, as the program reads it from
// memory.
func word(ip string) uint32 {
	raw := netip.MustParseAddr(ip).As4()
	return binary.NativeEndian.Uint32(raw[:])
}

// attachIngress attaches a program to the packets that a link receives.
func (n *Netns) attachIngress(t testing.TB, link string, prog *ebpf.Program) {
	t.Helper()
	n.must(t, "attach to "+link, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		qdisc := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: qdisc}); err != nil {
			if errors.Is(err, unix.ENOENT) {
				Skip(t, "the kernel has no clsact")
			}
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
			},
			Fd: prog.FD(), Name: "lab", DirectAction: true,
		})
	})
}

// Dropped is the number of packets that the CNI dropped because a FIB lookup
// returned the given code, BPF_FIB_LKUP_RET_*.
func (n *CNINode) Dropped(t testing.TB, code uint32) uint64 { return counted(t, n.objs.Dropped, code) }

// Leaked is the number of packets to the VIP that left the node.
func (n *CNINode) Leaked(t testing.TB) uint64 { return counted(t, n.objs.Leaked, 0) }

func counted(t testing.TB, m *ebpf.Map, key uint32) (n uint64) {
	t.Helper()
	if err := m.Lookup(key, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
