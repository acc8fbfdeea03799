package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the counters of all pools that share it. A metric that means the same
// as one of CoreDNS has CoreDNS's name. The series of an endpoint exist for as long
// as a pool has it.
type Metrics struct {
	healthBroken prometheus.Counter
	rejected     prometheus.Counter

	mu        sync.Mutex
	endpoints map[string]*endpointMetrics // by address and port
}

// NewMetrics makes the counters and registers them with reg. With a nil reg they
// are not exported.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		healthBroken: counter("coredns_forward_healthcheck_broken_total",
			"Questions for which every upstream was marked dead.", nil),
		rejected: counter("coredns_forward_max_concurrent_rejects_total",
			"Queries rejected because max_concurrent was reached.", nil),
		endpoints: make(map[string]*endpointMetrics),
	}
	if reg != nil {
		_ = reg.Register(m) // a Collector that describes nothing cannot conflict with another
	}
	return m
}

func counter(name, help string, labels prometheus.Labels) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
}

// Describe implements prometheus.Collector. It describes nothing, since the
// series change with the endpoints.
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

// acquire returns the metrics of one endpoint. The caller releases them.
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

	recent struct {
		sync.Mutex
		recentTimes
	}

	mu     sync.Mutex
	series map[seriesKey]prometheus.Metric

	// The series that every query counts in, found without mu and the map.
	replies            [numRcodes]atomic.Pointer[replySeries]
	connHits, connMade [numProtos]atomic.Pointer[prometheus.Counter]
}

// replySeries are the series of one rcode.
type replySeries struct {
	count          prometheus.Counter
	forward, proxy prometheus.Histogram
}

// proto is how a query travels; its text is a label.
type proto int

const (
	overUDP proto = iota
	overTCP
	overTLS
	numProtos
)

func (p proto) String() string { return [...]string{"udp", "tcp", "tcp-tls"}[p] }

// numRcodes is one more than the largest rcode that has a name (RFC 6895
// section 2.3). The last index is for all rcodes without one.
const numRcodes = 25

// seriesKey names a series that is made when it is first needed. value is an
// rcode, a protocol or a verdict, so the number of series is bounded.
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
			"Second queries sent because the reply to the first was late, by upstream.", labels),
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
		"1, or 0 while a forward marks the upstream dead.", nil, prometheus.Labels{"to": e.to})
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

func (e *endpointMetrics) probeFailed() {
	e.healthFails.Inc()
	e.proxyHealthFails.Inc()
}

// ignore counts a message that replies to no query.
func (e *endpointMetrics) ignore(v verdict) {
	e.count("nodens_upstream_ignored_replies_total", "Replies that did not match the query, by reason.",
		string(v), prometheus.Labels{"to": e.to, "reason": string(v)})
}

// conn counts a query by whether its connection was there before (hit).
func (e *endpointMetrics) conn(p proto, hit bool) {
	at, name, help := &e.connMade[p], "coredns_proxy_conn_cache_misses_total", "Queries that needed a new connection."
	if hit {
		at, name, help = &e.connHits[p], "coredns_proxy_conn_cache_hits_total", "Queries sent over an idle connection."
	}
	c := at.Load()
	if c == nil {
		s := e.get(seriesKey{name, p.String()}, func() prometheus.Metric {
			return counter(name, help, prometheus.Labels{"proxy_name": "forward", "to": e.to, "proto": p.String()})
		}).(prometheus.Counter)
		c = &s
		at.Store(c)
	}
	(*c).Inc()
}

// response counts a reply and the time the upstream took for it.
func (e *endpointMetrics) response(rcode int, took time.Duration) {
	i := min(rcode, numRcodes-1)
	r := e.replies[i].Load()
	if r == nil {
		r = e.newReplies(rcodeLabel(rcode))
		e.replies[i].Store(r)
	}
	r.count.Inc()
	r.forward.Observe(took.Seconds())
	r.proxy.Observe(took.Seconds())
	e.recent.Lock()
	defer e.recent.Unlock()
	if now := time.Now(); now.Sub(e.recent.since) >= halfMinute {
		e.recent.rotate(now)
	}
	e.recent.counts[e.recent.now][rttBucket(took)]++
}

func (e *endpointMetrics) newReplies(rcode string) *replySeries {
	labels := prometheus.Labels{"to": e.to, "rcode": rcode}
	count := e.get(seriesKey{"coredns_forward_responses_total", rcode}, func() prometheus.Metric {
		return counter("coredns_forward_responses_total", "Replies received, by upstream.", labels)
	})
	proxy := prometheus.Labels{"proxy_name": "forward", "to": e.to, "rcode": rcode}
	return &replySeries{
		count:   count.(prometheus.Counter),
		forward: e.histogram("coredns_forward_request_duration_seconds", rcode, labels),
		proxy:   e.histogram("coredns_proxy_request_duration_seconds", rcode, proxy),
	}
}

func (e *endpointMetrics) histogram(name, rcode string, labels prometheus.Labels) prometheus.Histogram {
	return e.get(seriesKey{name, rcode}, func() prometheus.Metric {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: "Time until the upstream replied.", ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16), // 250 µs to 8 s, CoreDNS's
		})
	}).(prometheus.Histogram)
}

func (e *endpointMetrics) count(name, help, value string, labels prometheus.Labels) {
	s := e.get(seriesKey{name, value}, func() prometheus.Metric { return counter(name, help, labels) })
	s.(prometheus.Counter).Inc()
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

// addDown is called when a pool marks the endpoint dead (1) or alive again (-1).
func (e *endpointMetrics) addDown(n int64) { e.down.Add(n) }

// rcodeLabel names an rcode. Unassigned rcodes share a label.
func rcodeLabel(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return "other"
}
