package daemon

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/cache"
)

// newSetupErrors makes a counter with node-cache's name and labels.
// -metrics-listen-address exports it, too.
func newSetupErrors(reg prometheus.Registerer) *prometheus.CounterVec {
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_nodecache_setup_errors_total", Help: "Failures to set up the host or to read the kube-dns ConfigMap.",
	}, []string{"errortype"})
	for _, t := range []string{"configmap", "interface_check", "iptables"} {
		errors.WithLabelValues(t)
	}
	reg.MustRegister(errors)
	return errors
}

// buildInfo is a constant 1 with the version as labels.
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

// cacheMetrics reads the caches at each scrape, without a lock.
type cacheMetrics struct {
	store *cache.Store
	inUse atomic.Pointer[[]cacheOf] // nil: none yet
}

func newCacheMetrics(reg prometheus.Registerer, store *cache.Store) *cacheMetrics {
	m := &cacheMetrics{store: store}
	reg.MustRegister(m)
	return m
}

// use makes later scrapes read caches.
func (m *cacheMetrics) use(caches []cacheOf) { m.inUse.Store(&caches) }

var (
	entriesDesc   = prometheus.NewDesc("coredns_cache_entries", "Cached answers, by kind.", []string{"server", "type", "zones", "view"}, nil)
	evictionsDesc = prometheus.NewDesc("coredns_cache_evictions_total", "Answers evicted to make room, by kind.", []string{"server", "type", "zones", "view"}, nil)
	bytesDesc     = prometheus.NewDesc("nodens_cache_bytes", "Bytes that cached answers use, overhead included.", nil, nil)
	budgetDesc    = prometheus.NewDesc("nodens_cache_budget_bytes", "Bytes that cached answers may use.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *cacheMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{entriesDesc, evictionsDesc, bytesDesc, budgetDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *cacheMetrics) Collect(ch chan<- prometheus.Metric) {
	st := m.store.Stats()
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(st.Bytes))
	ch <- prometheus.MustNewConstMetric(budgetDesc, prometheus.GaugeValue, float64(st.Budget))
	for l, n := range m.counts() {
		ch <- prometheus.MustNewConstMetric(entriesDesc, prometheus.GaugeValue, float64(n.entries), l.server, l.kind, l.zones, "")
		ch <- prometheus.MustNewConstMetric(evictionsDesc, prometheus.CounterValue, float64(n.evicted), l.server, l.kind, l.zones, "")
	}
}

type cacheLabels struct{ server, kind, zones string }

type cacheCount struct {
	entries int
	evicted uint64
}

// all returns the caches in use.
func (m *cacheMetrics) all() []cacheOf {
	if caches := m.inUse.Load(); caches != nil {
		return *caches
	}
	return nil
}

// counts adds up caches with equal labels: two blocks may serve the same zones on
// addresses that differ only in their bind directives.
func (m *cacheMetrics) counts() map[cacheLabels]cacheCount {
	counts := make(map[cacheLabels]cacheCount)
	for _, k := range m.all() {
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
