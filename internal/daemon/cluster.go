package daemon

import (
	"context"
	"errors"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/kube"
)

// clusterMetrics are of what the API server tells.
type clusterMetrics struct {
	endpoints prometheus.Gauge
	errors    prometheus.Counter
}

func newClusterMetrics(reg prometheus.Registerer) *clusterMetrics {
	m := &clusterMetrics{
		endpoints: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_kube_endpoints",
			Help: "Servers of the cluster's DNS that the API server names for this node; 0 while none is known.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_kube_errors_total",
			Help: "Lists and watches of the API server that failed.",
		}),
	}
	reg.MustRegister(m.endpoints, m.errors)
	return m
}

// wantsEndpoints says whether a makes use of them: redirection, or a forward.
func wantsEndpoints(a *app) bool {
	return a.plan.Wanted() && !a.plan.FixedFallbacks || a.asksEndpoints
}

// followEndpoints hands on who answers for the cluster's DNS, until ctx ends.
// Without a service account it does nothing.
func (d *daemon) followEndpoints(ctx context.Context) {
	c := d.opts.Cluster
	account, err := kube.InCluster(d.opts.Getenv, c.Account)
	if errors.Is(err, kube.ErrNoAccount) {
		d.log.Debug("endpoints are not learnt", "reason", err)
		return
	}
	if err != nil {
		d.log.Warn("endpoints are not learnt", "error", err)
		return
	}
	zone := c.Zone
	if zone == "" {
		zone = d.opts.Getenv("NODE_ZONE")
	}
	kube.Watch(ctx, kube.Config{
		Account: account, Namespace: c.Namespace, Service: c.Service, Zone: zone,
		Logger: d.log, OnError: func(error) { d.cluster.errors.Inc() },
	}, d.learn)
}

// learn is told of every change.
func (d *daemon) learn(endpoints []netip.AddrPort) {
	d.log.Info("endpoints of the cluster's DNS learnt", "service", d.opts.Cluster.Namespace+"/"+d.opts.Cluster.Service, "endpoints", endpoints)
	if err := d.redirect.Learn(endpoints); err != nil {
		d.log.Error("fallbacks are not up to date", "error", err)
	}
	if err := d.pools.learn(endpoints); err != nil {
		d.log.Error("keep the upstreams as they were", "error", err)
	}
	d.cluster.endpoints.Set(float64(len(endpoints)))
}
