package hostmode

import (
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The Service of the cluster's DNS, and the pod that kube-proxy sends its
// queries to.
const (
	serviceIP   = "10.96.0.10"
	serviceAddr = serviceIP + ":53"
	backend     = otherDNS
)

// addPod joins a pod to the node, 10.0.1.5, which reaches everything through
// it.
func (n *node) addPod(t *testing.T) *lab.Netns {
	t.Helper()
	pod := n.AddPod(t, "pod")
	n.before = n.state(t)
	return pod
}

// kubeProxy is what kube-proxy does to the Service: translation to the backend,
// for pods and for the node itself, whose address it puts in where the sender
// is no pod.
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

// pretendKubeProxy installs kubeProxy. The node needs a route to the Service,
// for translation comes after routing.
func (n *node) pretendKubeProxy(t *testing.T) {
	t.Helper()
	n.AddRoute(t, "0.0.0.0/0", lab.OutsideIP)
	n.write(t, "/etc/kube-proxy.nft", kubeProxy)
	n.output(t, "nft", "-f", "/etc/kube-proxy.nft")
	n.before = n.state(t)
}
