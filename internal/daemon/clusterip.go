package daemon

import (
	"fmt"
	"net/netip"
)

// clusterIPEnv is the variable by which the kubelet gives pods of kube-system the
// cluster IP of the Service kube-dns.
const clusterIPEnv = "KUBE_DNS_SERVICE_HOST"

// wrongClusterIP describes a local IP that looks like a cluster IP, while the Service
// kube-dns has another one of the same family. It returns "" if there is none.
func wrongClusterIP(o *Options) string {
	service, err := netip.ParseAddr(o.Getenv(clusterIPEnv))
	if err != nil {
		return ""
	}
	wrong := netip.Addr{}
	for _, ip := range o.LocalIPs {
		switch {
		case ip == service:
			return ""
		case ip.Is4() == service.Is4() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback():
			wrong = ip
		}
	}
	if !wrong.IsValid() {
		return ""
	}
	return fmt.Sprintf("-localip has %v, but the Service kube-dns has %v (%s)", wrong, service, clusterIPEnv)
}
