package main

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/kube"
)

// clusterFlags say what to ask the API server for, and as whom.
type clusterFlags struct {
	namespace, service string
	zone               string // of the node; empty: $NODE_ZONE
	account            string // directory
}

func (c *clusterFlags) set(fs *flag.FlagSet) {
	c.namespace, c.service = "kube-system", "kube-dns"
	fs.Func("endpoints-of", "the cluster DNS's `Service`, NAMESPACE/NAME: redirection's fallbacks, and the upstreams of a forward with kubernetes_endpoints, are its endpoints, learnt from the API server where there is a service account (default kube-system/kube-dns)", func(s string) error {
		namespace, service, _ := strings.Cut(s, "/")
		if !isObjectName(namespace) || !isObjectName(service) {
			return errors.New("want NAMESPACE/NAME")
		}
		c.namespace, c.service = namespace, service
		return nil
	})
	fs.StringVar(&c.zone, "zone", "", "the node's topology.kubernetes.io/`zone`, whose endpoints are preferred (default $NODE_ZONE)")
	fs.StringVar(&c.account, "service-account", kube.AccountDir, "`directory` of the service account's token and ca.crt")
}

// isObjectName holds s to the form of a DNS label or name, as Kubernetes wants
// it for what becomes part of a path.
func isObjectName(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, ".") != ""
}

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
	return a.plan.settings.Mode != config.RedirectOff && !a.plan.given || a.asksEndpoints
}

// followEndpoints hands on who answers for the cluster's DNS, until ctx ends.
// Without a service account it does nothing.
func (d *daemon) followEndpoints(ctx context.Context) {
	c := d.flags.cluster
	account, err := kube.InCluster(d.files.getenv, c.account)
	if errors.Is(err, kube.ErrNoAccount) {
		d.log.Debug("endpoints are not learnt", "reason", err)
		return
	}
	if err != nil {
		d.log.Warn("endpoints are not learnt", "error", err)
		return
	}
	zone := c.zone
	if zone == "" {
		zone = d.files.getenv("NODE_ZONE")
	}
	kube.Watch(ctx, kube.Config{
		Account: account, Namespace: c.namespace, Service: c.service, Zone: zone,
		Logger: d.log, OnError: func(error) { d.cluster.errors.Inc() },
	}, d.learn)
}

// learn is told of every change.
func (d *daemon) learn(endpoints []netip.AddrPort) {
	d.log.Info("endpoints of the cluster's DNS learnt", "service", d.flags.cluster.namespace+"/"+d.flags.cluster.service, "endpoints", endpoints)
	if err := d.redirect.learn(endpoints); err != nil {
		d.log.Error("fallbacks are not up to date", "error", err)
	}
	if err := d.pools.learn(endpoints); err != nil {
		d.log.Error("keep the upstreams as they were", "error", err)
	}
	d.cluster.endpoints.Set(float64(len(endpoints)))
}
