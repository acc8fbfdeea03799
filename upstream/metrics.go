package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts for all pools that share it, under CoreDNS's names where the
// meaning is CoreDNS's. The series of an endpoint live as long as a pool has
// it.
type Metrics struct {
	healthBroken prometheus.Counter
	rejected     prometheus.Counter

	mu        sync.Mutex
	endpoints map[string]*endpointMetrics // by address and port
}

// NewMetrics makes the counters and registers them with reg; nil: they are
// counted but not exported.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		healthBroken: counter("coredns_forward_healthcheck_broken_total",
			"Exchanges for which every upstream seemed dead.", nil),
		rejected: counter("coredns_forward_max_concurrent_rejects_total",
			"Queries rejected because max_concurrent were under way.", nil),
		endpoints: make(map[string]*endpointMetrics),
	}
	if reg != nil {
		_ = reg.Register(m) // a Collector that describes nothing conflicts with nothing
	}
	return m
}

func counter(name, help string, labels prometheus.Labels) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
}

// Describe implements prometheus.Collector. The series come and go, so nothing
// is described beforehand.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	ch <- m.healthBroken
	ch <- m.rejected
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.endpoints {
		e.collect(ch)
	}
}

// acquire returns the metrics of one endpoint, to be released.
func (m *Metrics) acquire(to string) *endpointMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.endpoints[to]
	if !ok {
		e = newEndpointMetrics(m, to)
		m.endpoints[to] = e
	}
	e.users++
	return e
}

// endpointMetrics are the series of one endpoint.
type endpointMetrics struct {
	owner *Metrics
	to    string
	users int // pools that have it; guarded by owner.mu
	down  atomic.Int64

	requests, healthFails, proxyHealthFails, truncated, hedges prometheus.Counter
	rtt                                                        atomic.Int64 // smoothed, nanoseconds

	mu     sync.Mutex
	series map[seriesKey]prometheus.Metric
}

// seriesKey names a series that is made when it is first needed. value is an
// rcode, a protocol or a verdict, each a set of fixed size.
type seriesKey struct{ name, value string }

func newEndpointMetrics(owner *Metrics, to string) *endpointMetrics {
	labels := prometheus.Labels{"to": to}
	return &endpointMetrics{
		owner: owner, to: to, series: make(map[seriesKey]prometheus.Metric),
		requests:    counter("coredns_forward_requests_total", "Queries sent, by upstream.", labels),
		healthFails: counter("coredns_forward_healthcheck_failures_total", "Failed health probes, by upstream.", labels),
		proxyHealthFails: counter("coredns_proxy_healthcheck_failures_total", "Failed health probes, by upstream.",
			prometheus.Labels{"proxy_name": "forward", "to": to}),
		hedges: counter("nodens_upstream_hedged_queries_total",
			"Second queries sent because the reply to the first took longer than most, by upstream.", labels),
		truncated: counter("nodens_upstream_truncated_total",
			"Truncated answers passed on because TCP failed, by upstream.", labels),
	}
}

func (e *endpointMetrics) release() {
	e.owner.mu.Lock()
	defer e.owner.mu.Unlock()
	e.users--
	if e.users == 0 {
		delete(e.owner.endpoints, e.to)
	}
}

func (e *endpointMetrics) collect(ch chan<- prometheus.Metric) {
	ch <- e.requests
	ch <- e.healthFails
	ch <- e.proxyHealthFails
	ch <- e.hedges
	ch <- e.truncated
	healthy := prometheus.NewDesc("nodens_upstream_healthy",
		"1 if no forward takes the upstream for dead, else 0.", nil, prometheus.Labels{"to": e.to})
	value := 1.0
	if e.down.Load() > 0 {
		value = 0
	}
	ch <- prometheus.MustNewConstMetric(healthy, prometheus.GaugeValue, value)
	if mean := e.rtt.Load(); mean > 0 {
		rtt := prometheus.NewDesc("nodens_upstream_rtt_seconds",
			"Smoothed time from a query to its reply.", nil, prometheus.Labels{"to": e.to})
		ch <- prometheus.MustNewConstMetric(rtt, prometheus.GaugeValue, time.Duration(mean).Seconds())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.series {
		ch <- s
	}
}

func (e *endpointMetrics) request() { e.requests.Inc() }

func (e *endpointMetrics) hedged() { e.hedges.Inc() }

func (e *endpointMetrics) probeFailed() {
	e.healthFails.Inc()
	e.proxyHealthFails.Inc()
}

func (e *endpointMetrics) keptTruncated() { e.truncated.Inc() }

// ignore counts a reply that was not to our query.
func (e *endpointMetrics) ignore(v verdict) {
	e.count("nodens_upstream_ignored_replies_total", "Replies that did not match the query, by reason.",
		string(v), prometheus.Labels{"to": e.to, "reason": string(v)})
}

func (e *endpointMetrics) connHit(proto string) {
	e.count("coredns_proxy_conn_cache_hits_total", "Queries sent over an idle connection.", proto,
		prometheus.Labels{"proxy_name": "forward", "to": e.to, "proto": proto})
}

func (e *endpointMetrics) connMiss(proto string) {
	e.count("coredns_proxy_conn_cache_misses_total", "Queries that needed a new connection.", proto,
		prometheus.Labels{"proxy_name": "forward", "to": e.to, "proto": proto})
}

// response counts a reply and the time the upstream took for it.
func (e *endpointMetrics) response(rcode int, took time.Duration) {
	r := rcodeLabel(rcode)
	e.count("coredns_forward_responses_total", "Replies received, by upstream.", r,
		prometheus.Labels{"to": e.to, "rcode": r})
	const help = "Time until the upstream replied."
	e.observe("coredns_forward_request_duration_seconds", help, r, took, prometheus.Labels{"to": e.to, "rcode": r})
	e.observe("coredns_proxy_request_duration_seconds", help, r, took,
		prometheus.Labels{"proxy_name": "forward", "to": e.to, "rcode": r})
}

func (e *endpointMetrics) count(name, help, value string, labels prometheus.Labels) {
	s := e.get(seriesKey{name, value}, func() prometheus.Metric { return counter(name, help, labels) })
	s.(prometheus.Counter).Inc()
}

func (e *endpointMetrics) observe(name, help, value string, took time.Duration, labels prometheus.Labels) {
	s := e.get(seriesKey{name, value}, func() prometheus.Metric {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16), // 250 µs to 8 s, CoreDNS's
		})
	})
	s.(prometheus.Histogram).Observe(took.Seconds())
}

func (e *endpointMetrics) get(k seriesKey, make func() prometheus.Metric) prometheus.Metric {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, ok := e.series[k]
	if !ok {
		s = make()
		e.series[k] = s
	}
	return s
}

// addDown notes that a pool takes the endpoint for dead (1) or no longer (-1).
func (e *endpointMetrics) addDown(n int64) { e.down.Add(n) }

// rcodeLabel names an rcode; the unassigned ones share a label.
func rcodeLabel(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return "other"
}
