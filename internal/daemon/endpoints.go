package daemon

import (
	"context"
	"errors"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/kube"
)

// endpointFollower learns the endpoints of the cluster's DNS from the API server.
type endpointFollower struct {
	base
	setFallbacks func([]netip.AddrPort) error // of redirection
	setUpstreams func([]netip.AddrPort) error
	endpoints    prometheus.Gauge
	errors       prometheus.Counter
}

func newEndpointFollower(b base, setFallbacks, setUpstreams func([]netip.AddrPort) error) *endpointFollower {
	f := &endpointFollower{
		base: b, setFallbacks: setFallbacks, setUpstreams: setUpstreams,
		endpoints: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_kube_endpoints",
			Help: "Endpoints of the cluster's DNS that the API server lists for this node; 0 if none is known.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_kube_errors_total",
			Help: "List and watch requests to the API server that failed.",
		}),
	}
	b.registry.MustRegister(f.endpoints, f.errors)
	return f
}

// wantsEndpoints reports whether redirection or a forward of a uses the endpoints.
func (a *app) wantsEndpoints() bool {
	return a.plan.Wanted() && !a.plan.FixedFallbacks || a.usesEndpoints
}

// run follows the endpoints until ctx is done. Without a service account it does
// nothing.
func (f *endpointFollower) run(ctx context.Context) {
	c := f.opts.Cluster
	account, err := kube.InCluster(f.opts.Getenv, c.Account)
	if errors.Is(err, kube.ErrNoAccount) {
		f.log.Debug("endpoints of the cluster's DNS are not followed", "reason", err)
		return
	}
	if err != nil {
		f.log.Warn("endpoints of the cluster's DNS are not followed", "error", err)
		return
	}
	zone := c.Zone
	if zone == "" {
		zone = f.opts.Getenv("NODE_ZONE")
	}
	kube.Watch(ctx, kube.Config{
		Account: account, Namespace: c.Namespace, Service: c.Service, Zone: zone,
		Logger: f.log, OnError: func(error) { f.errors.Inc() },
	}, f.learn)
}

// learn is called with each change.
func (f *endpointFollower) learn(endpoints []netip.AddrPort) {
	c := f.opts.Cluster
	f.log.Info("endpoints of the cluster's DNS learned", "service", c.Namespace+"/"+c.Service, "endpoints", endpoints)
	if err := f.setFallbacks(endpoints); err != nil {
		f.log.Error("setting the fallbacks of redirection failed", "error", err)
	}
	if err := f.setUpstreams(endpoints); err != nil {
		f.log.Error("the upstreams stay as they were: setting the endpoints failed", "error", err)
	}
	f.endpoints.Set(float64(len(endpoints)))
}
