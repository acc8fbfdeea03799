package daemon

import (
	"fmt"
	"net/netip"
)

// clusterIPEnv is the variable by which the kubelet gives pods of kube-system the
// cluster IP of the Service kube-dns.
const clusterIPEnv = "KUBE_DNS_SERVICE_HOST"

// serviceBits is the shortest prefix that API servers before Kubernetes 1.34 accept for a
// range of IPv6 cluster IPs (cmd/kube-apiserver/app/options/validation.go, maxCIDRBits).
// In the larger ranges of later ones, wrong addresses may go unnoticed.
const serviceBits = 108

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
		case likeClusterIP(ip, service):
			wrong = ip
		}
	}
	if !wrong.IsValid() {
		return ""
	}
	return fmt.Sprintf("-localip has %v, but the Service kube-dns has %v (%s)", wrong, service, clusterIPEnv)
}

// likeClusterIP reports whether ip may have been meant as the cluster IP of service. In
// IPv6, an address outside of the Services' range is one that only nodens has.
func likeClusterIP(ip, service netip.Addr) bool {
	if ip.Is4() {
		return service.Is4() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback()
	}
	return service.Is6() && netip.PrefixFrom(service, serviceBits).Contains(ip)
}
