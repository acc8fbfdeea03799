package lab

import (
	"fmt"
	"os"
	"testing"
)

// Addresses of every Node and of the network outside it.
const (
	NodeIP    = "10.0.0.1"
	OutsideIP = "10.0.0.2"
)

// Node is the network namespace of a node, joined to the one that holds its
// servers. AddPod adds pods.
//
//	pod 10.0.N.5 ── 10.0.N.1 │ node │ eth0 10.0.0.1 ── eth0 10.0.0.2 │ outside
type Node struct {
	*Netns
	Outside *Netns
}

// NewNode makes a node with servers outside, each an IPv4 address.
func NewNode(t testing.TB, servers ...string) *Node {
	t.Helper()
	n := &Node{Netns: NewNetns(t, "node"), Outside: NewNetns(t, "outside")}
	n.Join(t, "eth0", []string{NodeIP + "/24"}, n.Outside, "eth0", []string{OutsideIP + "/24"})
	n.Outside.AddRoute(t, "10.0.0.0/16", NodeIP)
	for _, ip := range servers {
		n.AddServer(t, ip)
	}
	return n
}

// AddServer adds an IPv4 address outside and the node's route to it.
func (n *Node) AddServer(t testing.TB, ip string) {
	t.Helper()
	n.Outside.AddAddrs(t, "lo", ip+"/32")
	n.AddRoute(t, ip+"/32", OutsideIP)
}

// AddPod makes the namespace of the node's next pod and turns on IPv4 forwarding.
// The N-th pod, counted from 1, is 10.0.N.5. Its default route goes through the
// node, where it is 10.0.N.1 on the link podN-1.
func (n *Netns) AddPod(t testing.TB, name string) *Netns {
	t.Helper()
	pod, link := NewNetns(t, name), fmt.Sprintf("pod%d", n.pods)
	n.pods++
	subnet := fmt.Sprintf("10.0.%d.", n.pods)
	n.Join(t, link, []string{subnet + "1/24"}, pod, "eth0", []string{subnet + "5/24"})
	pod.AddRoute(t, "0.0.0.0/0", subnet+"1")
	n.Sysctl(t, "ipv4/ip_forward", "1")
	return pod
}

// Sysctl sets a setting below /proc/sys/net.
func (n *Netns) Sysctl(t testing.TB, name, value string) {
	t.Helper()
	n.must(t, "set "+name, func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}
