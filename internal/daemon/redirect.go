package daemon

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/kube"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// planRedirect derives the plan of redirection from cfg and the options.
func planRedirect(o *Options, cfg source) redirect.Plan {
	_, accountErr := kube.InCluster(o.Getenv, o.Cluster.Account)
	return redirect.NewPlan(redirect.Input{
		Config:   cfg.Config,
		LocalIPs: o.LocalIPs, NodeIPs: o.Redirect.NodeIPs, DNSPort: o.DNSPort,
		Kubepods: o.Redirect.Kubepods, PinDir: o.Redirect.PinDir,
		ClusterDomain: o.ClusterDomain,
		UpstreamIP:    serviceIP(o, o.UpstreamService), ClusterIP: serviceIP(o, o.Cluster.Service),
		LearnsEndpoints: accountErr == nil, Sample: o.Sample, Getenv: o.Getenv,
	})
}

// serviceIP returns the cluster IP of a Service in the environment, or an invalid
// address.
func serviceIP(o *Options, service string) netip.Addr {
	a, _ := netip.ParseAddr(o.Getenv(serviceEnv(service)))
	return a
}
