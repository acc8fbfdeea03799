package hostmode

import (
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The Service of the cluster's DNS, and the pod to which kube-proxy sends its
// queries.
const (
	serviceIP   = "10.96.0.10"
	serviceAddr = serviceIP + ":53"
	backend     = otherDNS
)

// addPod adds a pod, 10.0.1.5, whose default route is the node.
func (n *node) addPod(t *testing.T) *lab.Netns {
	t.Helper()
	pod := n.AddPod(t, "pod")
	n.before = n.state(t)
	return pod
}

// kubeProxy has the rules of kube-proxy for the Service: DNAT to the backend for
// pods and for the node, with masquerading if the sender is no pod.
const kubeProxy = `table ip kube-proxy {
	chain endpoint {
		ip saddr != 10.0.1.0/24 meta mark set meta mark or 0x4000
		meta l4proto { tcp, udp } dnat to ` + backend + `:53
	}
	chain services {
		ip daddr ` + serviceIP + ` udp dport 53 goto endpoint
		ip daddr ` + serviceIP + ` tcp dport 53 goto endpoint
	}
	chain prerouting {
		type nat hook prerouting priority dstnat
		jump services
	}
	chain output {
		type nat hook output priority -100
		jump services
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		meta mark and 0x4000 == 0x4000 masquerade
	}
}
`

// addKubeProxy installs kubeProxy. The node needs a route to the Service, because
// DNAT comes after routing.
func (n *node) addKubeProxy(t *testing.T) {
	t.Helper()
	n.AddRoute(t, "0.0.0.0/0", lab.OutsideIP)
	n.write(t, "/etc/kube-proxy.nft", kubeProxy)
	n.output(t, "nft", "-f", "/etc/kube-proxy.nft")
	n.before = n.state(t)
}
