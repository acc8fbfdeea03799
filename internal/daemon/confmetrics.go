package daemon

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/cache"
)

// configMetrics are about the process and its configuration.
type configMetrics struct {
	loop       *prometheus.GaugeVec
	reloadOK   prometheus.Gauge
	reloadFail prometheus.Counter
	// setupErrors has node-cache's name and labels. It is exported by itself
	// on -metrics-listen-address, too.
	setupErrors *prometheus.CounterVec
}

func newConfigMetrics(reg prometheus.Registerer, d *daemon) *configMetrics {
	m := &configMetrics{
		loop: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodens_loop_detected", Help: "1 while what the zone forwards comes back to this cache.",
		}, []string{"zone"}),
		reloadOK: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_config_last_reload_successful", Help: "0 while the Corefile on disk is bad and the last good one is in use.",
		}),
		reloadFail: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "coredns_reload_failed_total", Help: "Reloads that changed nothing because of an error.",
		}),
	}
	m.setupErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_nodecache_setup_errors_total", Help: "Failures to set up the host or to read the kube-dns ConfigMap.",
	}, []string{"errortype"})
	for _, t := range []string{"configmap", "interface_check", "iptables"} {
		m.setupErrors.WithLabelValues(t)
	}
	m.reloadOK.Set(1)
	reg.MustRegister(d.lines.dropped, m.setupErrors, m.loop, m.reloadOK, m.reloadFail, cacheCollector{d}, buildInfo("coredns_build_info", d.opts.Version), buildInfo("nodens_build_info", d.opts.Version))
	return m
}

func (m *configMetrics) reloaded(err error) {
	if err != nil {
		m.reloadFail.Inc()
	}
	m.reloadOK.Set(boolGauge(err == nil))
}

// buildInfo is a constant 1 whose labels tell what runs.
func buildInfo(name, version string) prometheus.Collector {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: name, Help: "1, with the version as labels.",
		ConstLabels: prometheus.Labels{"version": "nodens-" + version, "revision": revision, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}

// cacheCollector reads the caches when scraped.
type cacheCollector struct{ d *daemon }

var (
	entriesDesc   = prometheus.NewDesc("coredns_cache_entries", "Cached answers, by kind.", []string{"server", "type", "zones", "view"}, nil)
	evictionsDesc = prometheus.NewDesc("coredns_cache_evictions_total", "Answers dropped for want of room, by kind.", []string{"server", "type", "zones", "view"}, nil)
	bytesDesc     = prometheus.NewDesc("nodens_cache_bytes", "Octets that cached answers take, overhead included.", nil, nil)
	budgetDesc    = prometheus.NewDesc("nodens_cache_budget_bytes", "Octets that cached answers may take.", nil, nil)
)

// Describe implements prometheus.Collector.
func (cacheCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{entriesDesc, evictionsDesc, bytesDesc, budgetDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c cacheCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.d.store.Stats()
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(st.Bytes))
	ch <- prometheus.MustNewConstMetric(budgetDesc, prometheus.GaugeValue, float64(st.Budget))
	for labels, n := range c.d.cacheCounts() {
		ch <- prometheus.MustNewConstMetric(entriesDesc, prometheus.GaugeValue, float64(n.entries), labels.server, labels.kind, labels.zones, "")
		ch <- prometheus.MustNewConstMetric(evictionsDesc, prometheus.CounterValue, float64(n.evicted), labels.server, labels.kind, labels.zones, "")
	}
}

type cacheLabels struct{ server, kind, zones string }

type cacheCount struct {
	entries int
	evicted uint64
}

// cacheCounts adds up the caches with equal labels: two blocks may serve the
// same zones on addresses that only their binds tell apart.
func (d *daemon) cacheCounts() map[cacheLabels]cacheCount {
	counts := make(map[cacheLabels]cacheCount)
	for _, k := range d.cachesInUse() {
		s := k.cache.Stats()
		for kind, v := range map[string]cache.KindStats{"success": s.Success, "denial": s.Denial, "servfail": s.Failure} {
			l := cacheLabels{k.server, kind, k.zones}
			n := counts[l]
			n.entries += v.Entries
			n.evicted += v.Evicted.Cap + v.Evicted.Budget
			counts[l] = n
		}
	}
	return counts
}

func (d *daemon) cachesInUse() []cacheOf {
	if c := d.caches.Load(); c != nil {
		return *c
	}
	return nil
}
