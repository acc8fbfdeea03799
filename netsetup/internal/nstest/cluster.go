package nstest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
)

// Addresses of the cluster.
var (
	LocalIPs = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:53::10")}
	Services = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	backends = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	nodeIPs  = []string{"10.0.1.1/24", "fd00:1::1/64"}
	podIPs   = []string{"10.0.1.5/24", "fd00:1::5/64"}
)

// DNSPort is where Services answer.
const DNSPort = 53

const backendPort = 5353

// Cluster is a node with a pod behind a veth pair, and a service proxy that
// sends the DNS service to a backend.
type Cluster struct {
	Node, Pod *Namespace
}

// NewCluster adds a pod and the service proxy to node.
func NewCluster(t *testing.T, node *Namespace) Cluster {
	t.Helper()
	c := Cluster{Node: node, Pod: New(t)}
	node.Join(t, "lxc0", nodeIPs, c.Pod.Netns, "eth0", podIPs)
	for i, all := range []string{"0.0.0.0/0", "::/0"} {
		c.Pod.AddRoute(t, all, netip.MustParsePrefix(nodeIPs[i]).Addr().String())
		node.AddRoute(t, all, netip.MustParsePrefix(podIPs[i]).Addr().String()) // a default route; no packet takes it
	}
	for _, ip := range backends {
		node.AddAddr(t, "lo", netip.PrefixFrom(ip, ip.BitLen()).String())
		node.Serve(t, netip.AddrPortFrom(ip, backendPort), "backend")
	}
	node.ServiceProxy(t)
	return c
}

// Serve answers every UDP datagram and TCP connection on local with name.
func Serve(local netip.AddrPort, name string) (stop func(), err error) {
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

// Serve is Serve in the namespace, until the end of the test at the latest.
func (ns *Namespace) Serve(t *testing.T, local netip.AddrPort, name string) (stop func()) {
	t.Helper()
	ns.Inside(t, func() (err error) {
		stop, err = Serve(local, name)
		return err
	})
	t.Cleanup(stop)
	return stop
}

// Query returns the name of the server that answers on the DNS port of ip.
func (ns *Namespace) Query(network string, ip netip.Addr) string {
	return ns.QueryWithin(30*time.Second, network, netip.AddrPortFrom(ip, DNSPort))
}

// QueryWithin returns the text of an error if there is no answer in time.
func (ns *Namespace) QueryWithin(timeout time.Duration, network string, to netip.AddrPort) string {
	answer := make([]byte, 512)
	n := 0
	err := ns.Do(func() error {
		c, err := net.DialTimeout(network, to.String(), timeout)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "query"); err != nil {
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

// ServiceProxy translates the DNS port of Services to the backends, for pods and
// for the node, as kube-proxy does.
func (ns *Namespace) ServiceProxy(t *testing.T) {
	t.Helper()
	Check(t, ns.Nft(func(conn *nftables.Conn) error {
		table := conn.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyINet})
		for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput} {
			c := conn.AddChain(&nftables.Chain{
				Name: name, Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: hook, Priority: nftables.ChainPriorityNATDest,
			})
			for i, ip := range Services {
				for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
					conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: translate(ip, proto, backends[i])})
				}
			}
		}
		return nil
	}))
}

func translate(ip netip.Addr, proto byte, backend netip.Addr) []expr.Any {
	match := append(nft.FamilyIs(ip), nft.AddrIs(ip, nft.AddrDst)...)
	match = append(match, nft.PortIs(proto, nft.PortDst, DNSPort)...)
	family := uint32(unix.NFPROTO_IPV4)
	if ip.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return append(match,
		&expr.Immediate{Register: 1, Data: backend.AsSlice()},
		&expr.Immediate{Register: 2, Data: []byte{backendPort >> 8, backendPort & 0xff}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2, Specified: true})
}
