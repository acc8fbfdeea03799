package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip4     = "169.254.20.10"
	vip6     = "fd00:53::53"
	upstream = "10.0.0.53"
	metrics  = "127.0.0.1:9253"
)

// node is a node with two pods, one with a route of its own and one behind a bridge.
type node struct {
	*lab.Node
	routed, bridged *lab.Netns
	servers         *lab.Upstream
}

// newNode makes a node whose upstream answers with the given function.
func newNode(t testing.TB, answer func(q *dns.Msg) *dns.Msg) *node {
	t.Helper()
	lab.NeedBPF(t)
	n := &node{Node: lab.NewNode(t, upstream)}
	n.AddRoute(t, "0.0.0.0/0", lab.OutsideIP) // so that eth0 is an uplink
	n.AddAddrs(t, "lo", vip4+"/32", vip6+"/128")
	for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"} {
		n.Sysctl(t, name, value)
	}
	n.routed, n.bridged = n.addRouted(t, 1), n.addBridged(t)
	n.servers = lab.StartUpstream(t, n.Outside, upstream+":53", answer)
	return n
}

// Link-local addresses of the host's ends and of pods. Without one, the kernel does not
// probe IPv6 neighbours, and forgets them.
const linkLocalHost, linkLocalPod = "fe80::1/64", "fe80::5/64"

// addRouted adds a pod with the addresses 10.1.N.5 and fd00:1:N::5.
func (n *node) addRouted(t testing.TB, i int) *lab.Netns {
	t.Helper()
	pod := lab.NewNetns(t, fmt.Sprintf("routed%d", i))
	v4, v6 := fmt.Sprintf("10.1.%d.", i), fmt.Sprintf("fd00:1:%d::", i)
	n.Join(t, fmt.Sprintf("cali%d", i), []string{v4 + "1/24", v6 + "1/64", linkLocalHost}, pod, "eth0", []string{v4 + "5/24", v6 + "5/64", linkLocalPod})
	pod.AddRoute(t, "0.0.0.0/0", v4+"1")
	pod.AddRoute(t, "::/0", v6+"1")
	return pod
}

// addBridged adds a bridge and a pod behind it with the addresses 10.2.0.5 and
// fd00:2::5.
func (n *node) addBridged(t testing.TB) *lab.Netns {
	t.Helper()
	n.Inside(t, func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.HardwareAddr = "cni0", net.HardwareAddr{2, 0, 0, 0, 0, 9}
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: a})
	})
	n.SetLink(t, "cni0", true)
	n.AddAddrs(t, "cni0", "10.2.0.1/24", "fd00:2::1/64", linkLocalHost)
	return n.addPort(t, "bridged", "veth1", "10.2.0.5/24", "fd00:2::5/64", linkLocalPod)
}

// addPort adds a pod with a veth that is a port of the bridge.
func (n *node) addPort(t testing.TB, name, veth string, addrs ...string) *lab.Netns {
	t.Helper()
	pod := lab.NewNetns(t, name)
	n.Join(t, veth, nil, pod, "eth0", addrs)
	n.Inside(t, func() error {
		port, err := netlink.LinkByName(veth)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	})
	pod.AddRoute(t, "0.0.0.0/0", "10.2.0.1")
	pod.AddRoute(t, "::/0", "fd00:2::1")
	return pod
}

const corefile = `. {
    bind ` + vip4 + ` ` + vip6 + `
    cache {
        success 9984 3600 1
    }
    forward . ` + upstream + `
    prometheus ` + metrics + `
    OPTIONS
}
`

// start starts the daemon with lines added to its server block, and waits until the
// program is on the given number of interfaces.
func (n *node) start(t testing.TB, interfaces int, options ...string) *lab.Daemon {
	t.Helper()
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Corefile: corefileWith(options...),
		Args: []string{"-keep-privileges"},
	})
	if interfaces > 0 {
		n.WaitForMetric(t, metrics, float64(interfaces), "nodens_kernel_interfaces")
	}
	return d
}

// answers returns how many queries the kernel has answered.
func (n *node) answers(t testing.TB) float64 {
	t.Helper()
	sum, _ := n.Scrape(t, metrics).Sum("nodens_kernel_answers_total")
	return sum
}

// warm sends a query from the pod until the kernel answers it.
func (n *node) warm(t testing.TB, pod *lab.Netns, server, name string) {
	t.Helper()
	before := n.answers(t)
	for late := time.Now().Add(time.Minute); time.Now().Before(late); {
		for range 3 {
			pod.Ask(t, "udp", server, lab.Query(name, dns.TypeA))
		}
		if n.answers(t) > before {
			return
		}
	}
	t.Fatalf("the kernel does not answer %s; metrics: %v", pod.Name, n.passed(t))
}

// passed describes the reasons for which the kernel passed queries.
func (n *node) passed(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, m := range n.Scrape(t, metrics)["nodens_kernel_passed_total"].GetMetric() {
		fmt.Fprintf(&b, "%s %v ", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
	}
	return b.String()
}

func servers() []string {
	return []string{vip4 + ":53", netip.AddrPortFrom(netip.MustParseAddr(vip6), 53).String()}
}

// fixed answers each A query with the same address and TTL.
func fixed(q *dns.Msg) *dns.Msg {
	if q.Question[0].Qtype != dns.TypeA {
		return lab.Denial(q, dns.RcodeSuccess, ".")
	}
	return lab.ReplyAddress(q, "192.0.2.1")
}

// corefileWith adds lines to the server block.
func corefileWith(options ...string) string {
	return strings.Replace(corefile, "OPTIONS", strings.Join(options, "\n    "), 1)
}
