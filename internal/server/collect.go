package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/server/action"
)

// descs describe the exported metrics. The view label is CoreDNS's. It is
// always empty, since nodens has no views.
type descs struct {
	requests, responses, duration, do   *prometheus.Desc
	reqSize, respSize                   *prometheus.Desc
	cacheRequests, cacheHits            *prometheus.Desc
	cacheMisses, cacheStale, prefetch   *prometheus.Desc
	panics, discarded, sendErrors       *prometheus.Desc
	tcpRejected, tcpEvicted             *prometheus.Desc
	missLimited, hitsTook               *prometheus.Desc
	clientLimited, outsiders, tcpUnread *prometheus.Desc
	normalised, siblings, siblingWait   *prometheus.Desc
	aclBlocked, aclFiltered, aclDropped *prometheus.Desc
	dns64                               *prometheus.Desc
	cutAnswers, cutsFound, cutQueries   *prometheus.Desc
	contradictions, cutOff              *prometheus.Desc

	all []*prometheus.Desc
}

func newDescs() *descs {
	var all []*prometheus.Desc
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc(name, help, labels, nil)
		all = append(all, d)
		return d
	}
	ds := &descs{
		requests:      desc("coredns_dns_requests_total", "Queries received.", "server", "zone", "view", "proto", "family", "type"),
		responses:     desc("coredns_dns_responses_total", "Replies sent, by rcode and by directive that answered.", "server", "zone", "view", "rcode", "plugin"),
		duration:      desc("coredns_dns_request_duration_seconds", "Time from reading a query to making its reply.", "server", "zone", "view"),
		do:            desc("coredns_dns_do_requests_total", "Queries with the DNSSEC OK bit.", "server", "zone", "view"),
		reqSize:       desc("coredns_dns_request_size_bytes", "Size of queries.", "server", "zone", "view", "proto"),
		respSize:      desc("coredns_dns_response_size_bytes", "Size of replies.", "server", "zone", "view", "proto"),
		cacheRequests: desc("coredns_cache_requests_total", "Lookups in the cache.", "server", "zones", "view"),
		cacheHits:     desc("coredns_cache_hits_total", "Replies from the cache, by kind of answer.", "server", "type", "zones", "view"),
		cacheMisses:   desc("coredns_cache_misses_total", "Lookups that the cache could not answer.", "server", "zones", "view"),
		cacheStale:    desc("coredns_cache_served_stale_total", "Replies with expired answers.", "server", "zones", "view"),
		prefetch:      desc("coredns_cache_prefetch_total", "Background refreshes of cached answers.", "server", "zones", "view"),
		panics:        desc("coredns_panics_total", "Panics while resolving a query."),
		discarded:     desc("nodens_server_discarded_total", "Messages that are not queries. They get no reply."),
		sendErrors:    desc("nodens_server_send_errors_total", "Replies that the kernel refused to send."),
		tcpRejected:   desc("nodens_server_tcp_rejected_total", "New TCP connections closed because of the connection limit, while none was idle."),
		tcpEvicted:    desc("nodens_server_tcp_evicted_total", "Idle TCP connections closed to make room for new ones."),
		tcpUnread:     desc("nodens_server_tcp_unread_total", "Queries over TCP answered with SERVFAIL because too many replies wait until clients read them."),
		missLimited:   desc("nodens_server_miss_limited_total", "Queries answered with SERVFAIL because too many were being resolved."),
		clientLimited: desc("nodens_server_client_limited_total", "Queries answered with SERVFAIL because too many of one client were being resolved."),
		outsiders:     desc("nodens_server_outsiders_refused_total", "Queries refused because only the default route leads to the client."),
		hitsTook:      desc("nodens_server_hit_duration_seconds", "Time from reading a query to making its reply, cache hits only.", "server", "zone"),
		normalised:    desc("nodens_normalize_total", "Denials that the normalize directive judged, by result.", "zone", "qtype", "result"),
		siblings:      desc("nodens_normalize_sibling_total", "Lookups of the other address type, by source of the answer.", "source"),
		siblingWait:   desc("nodens_normalize_sibling_wait_seconds", "Time that replies waited for the other address type's answer."),
	}
	ds.aclBlocked = desc("coredns_acl_blocked_requests_total", "Queries that an acl directive refused.", "server", "zone", "view")
	ds.aclFiltered = desc("coredns_acl_filtered_requests_total", "Queries that an acl directive answered without records.", "server", "zone", "view")
	ds.aclDropped = desc("coredns_acl_dropped_requests_total", "Queries that an acl directive dropped.", "server", "zone", "view")
	ds.dns64 = desc("coredns_dns64_requests_translated_total", "Replies that the dns64 directive translated.", "server", "zone")
	ds.cutAnswers = desc("nodens_search_cut_answers_total", "Replies that follow from a cut.", "zone")
	ds.cutsFound = desc("nodens_search_cut_found_total", "Denials of upstreams that made or renewed a cut.", "zone")
	ds.cutQueries = desc("nodens_search_cut_queries_total", "Queries to upstreams that find, renew and check cuts.", "zone")
	ds.contradictions = desc("nodens_search_cut_contradictions_total", "Names that exist below a name that the upstream denied.", "zone")
	ds.cutOff = desc("nodens_search_cut_off", "1 if the upstream has data below a name that it denies, so that cuts are off until the next reload.", "zone")
	ds.all = all
	return ds
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	count(m.descs.panics, m.panics.Load())
	count(m.descs.discarded, m.discarded.Load())
	count(m.descs.sendErrors, m.sendErrors.Load())
	count(m.descs.tcpRejected, m.tcpRejected.Load())
	count(m.descs.tcpEvicted, m.tcpEvicted.Load())
	count(m.descs.tcpUnread, m.tcpUnread.Load())
	count(m.descs.missLimited, m.missLimited.Load())
	count(m.descs.clientLimited, m.clientLimited.Load())
	count(m.descs.outsiders, m.outsiders.Load())

	m.mu.Lock()
	defer m.mu.Unlock()
	for _, z := range m.zones {
		z.kernel.add(z.rest())
	}
	m.collectNormalised(ch)
	m.collectCuts(ch)
	for k, z := range m.zones {
		c := zoneCollector{d: m.descs, z: z, server: k[0], zone: k[1], count: count, ch: ch}
		c.queries()
		c.actions()
		if k[1] != noZone {
			c.cache()
		}
		c.histograms()
	}
}

// normalisedLabels are the values of the result label. Answers that are not
// judged and those that stay NXDOMAIN are not exported.
var normalisedLabels = [numNormalised]string{
	rewritten: "rewritten", repaired: "repaired", siblingData: "sibling_data", siblingUnknown: "sibling_unknown",
	outDNSSEC: "dnssec", outCNAME: "cname", outReferral: "referral", outScope: "scope",
}

// collectCuts exports the counters of the search_cut directive, summed over the
// addresses that serve a zone.
func (m *Metrics) collectCuts(ch chan<- prometheus.Metric) {
	zones := make(map[string]*zoneStats)
	off := make(map[string]float64)
	for k, z := range m.zones {
		c := z.cut.Load()
		if c == nil {
			continue
		}
		if zones[k[1]] == nil {
			zones[k[1]] = new(zoneStats)
		}
		zones[k[1]].shards = append(zones[k[1]].shards, z.shards...)
		off[k[1]] = max(off[k[1]], float64(boolIndex(c.off.Load())))
	}
	for zone, z := range zones {
		c := zoneCollector{z: z}
		for d, count := range map[*prometheus.Desc]func(*statShard) uint64{
			m.descs.cutAnswers:     func(s *statShard) uint64 { return s.cuts.Load() },
			m.descs.cutsFound:      func(s *statShard) uint64 { return s.cutsFound.Load() },
			m.descs.cutQueries:     func(s *statShard) uint64 { return s.cutProbes.Load() },
			m.descs.contradictions: func(s *statShard) uint64 { return s.cutContradictions.Load() },
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(c.sum(count)), zone)
		}
		ch <- prometheus.MustNewConstMetric(m.descs.cutOff, prometheus.GaugeValue, off[zone], zone)
	}
}

// collectNormalised exports the counters of the normalize directive, summed over
// the addresses that serve a zone.
func (m *Metrics) collectNormalised(ch chan<- prometheus.Metric) {
	var siblings [numSiblingSources]uint64
	zones := make(map[string]*[2][numNormalised]uint64)
	all := zoneCollector{z: &zoneStats{}, ch: ch}
	for k, z := range m.zones {
		c := zoneCollector{z: z}
		all.z.shards = append(all.z.shards, z.shards...)
		if zones[k[1]] == nil {
			zones[k[1]] = new([2][numNormalised]uint64)
		}
		for t := range 2 {
			for r := range numNormalised {
				zones[k[1]][t][r] += c.sum(func(s *statShard) uint64 { return s.judged[t][r].Load() })
			}
		}
	}
	for i := range siblings {
		siblings[i] = all.sum(func(s *statShard) uint64 { return s.siblings[i].Load() })
		label := [numSiblingSources]string{"cache", "inflight", "upstream"}[i]
		ch <- prometheus.MustNewConstMetric(m.descs.siblings, prometheus.CounterValue, float64(siblings[i]), label)
	}
	all.histogram(m.descs.siblingWait, durationBounds, 1e9, nil, func(s *statShard) *histogram { return &s.waited })
	for zone, counts := range zones {
		for t, qtype := range [2]string{"A", "AAAA"} {
			for r, label := range normalisedLabels {
				if n := counts[t][r]; n > 0 && label != "" {
					ch <- prometheus.MustNewConstMetric(m.descs.normalised, prometheus.CounterValue, float64(n), zone, qtype, label)
				}
			}
		}
	}
}

// zoneCollector exports one zone's counters.
type zoneCollector struct {
	d            *descs
	z            *zoneStats
	server, zone string
	count        func(d *prometheus.Desc, v uint64, labels ...string)
	ch           chan<- prometheus.Metric
}

// sum adds up one counter over the shards.
func (c *zoneCollector) sum(pick func(*statShard) uint64) uint64 {
	var n uint64
	for _, s := range c.z.shards {
		n += pick(s)
	}
	return n
}

// queries exports queries and replies. It omits combinations that never
// occurred.
func (c *zoneCollector) queries() {
	for p, proto := range protoLabels {
		for f, family := range familyLabels {
			for t := range numTypes {
				if n := c.sum(func(s *statShard) uint64 { return s.requests[p][f][t].Load() }); n > 0 {
					c.count(c.d.requests, n, c.server, c.zone, "", proto, family, typeLabel(t))
				}
			}
		}
	}
	for p, plugin := range pluginLabels {
		for r := range numRcodes {
			if n := c.sum(func(s *statShard) uint64 { return s.responses[p][r].Load() }); n > 0 {
				c.count(c.d.responses, n, c.server, c.zone, "", rcodeLabel(r), plugin)
			}
		}
	}
	c.count(c.d.do, c.sum(func(s *statShard) uint64 { return s.do.Load() }), c.server, c.zone, "")
}

// actions exports the counters of the zone's actions. It omits those that are 0.
func (c *zoneCollector) actions() {
	for v, d := range map[action.ACLVerdict]*prometheus.Desc{action.ACLBlock: c.d.aclBlocked, action.ACLFilter: c.d.aclFiltered, action.ACLDrop: c.d.aclDropped} {
		if n := c.sum(func(s *statShard) uint64 { return s.judgedBy[v].Load() }); n > 0 {
			c.count(d, n, c.server, c.zone, "")
		}
	}
	if n := c.sum(func(s *statShard) uint64 { return s.translated.Load() }); n > 0 {
		c.count(c.d.dns64, n, c.server, c.zone)
	}
}

// cache exports the results of the zone's cache lookups.
func (c *zoneCollector) cache() {
	var n [numLookups]uint64
	var all uint64
	for i := range n {
		n[i] = c.sum(func(s *statShard) uint64 { return s.lookups[i].Load() })
		if lookup(i) != lookupNone {
			all += n[i]
		}
	}
	c.count(c.d.cacheRequests, all, c.server, c.zone, "")
	c.count(c.d.cacheHits, n[lookupSuccess], c.server, "success", c.zone, "")
	c.count(c.d.cacheHits, n[lookupDenial], c.server, "denial", c.zone, "")
	c.count(c.d.cacheHits, n[lookupServfail], c.server, "servfail", c.zone, "")
	c.count(c.d.cacheMisses, n[lookupMiss], c.server, c.zone, "")
	c.count(c.d.cacheStale, c.sum(func(s *statShard) uint64 { return s.stale.Load() }), c.server, c.zone, "")
	c.count(c.d.prefetch, c.sum(func(s *statShard) uint64 { return s.prefetch.Load() }), c.server, c.zone, "")
}

func (c *zoneCollector) histograms() {
	hit := func(s *statShard) *histogram { return &s.duration[0] }
	miss := func(s *statShard) *histogram { return &s.duration[1] }
	c.histogram(c.d.duration, durationBounds, 1e9, []string{c.server, c.zone, ""}, hit, miss)
	c.histogram(c.d.hitsTook, durationBounds, 1e9, []string{c.server, c.zone}, hit)
	for p, proto := range protoLabels {
		labels := []string{c.server, c.zone, "", proto}
		c.histogram(c.d.reqSize, sizeBounds, 1, labels, func(s *statShard) *histogram { return &s.reqSize[p] })
		c.histogram(c.d.respSize, sizeBounds, 1, labels, func(s *statShard) *histogram { return &s.respSize[p] })
	}
}

// histogram exports the sum of the picked histograms over all shards. The
// exported unit is scale times the observed one.
func (c *zoneCollector) histogram(d *prometheus.Desc, bounds []float64, scale float64, labels []string, picks ...func(*statShard) *histogram) {
	buckets := make(map[float64]uint64, len(bounds))
	var total, sum uint64
	for i := range len(bounds) + 1 {
		for _, pick := range picks {
			total += c.sum(func(s *statShard) uint64 { return pick(s).buckets[i].Load() })
		}
		if i < len(bounds) {
			buckets[bounds[i]] = total
		}
	}
	if total == 0 {
		return
	}
	for _, pick := range picks {
		sum += c.sum(func(s *statShard) uint64 { return pick(s).sum.Load() })
	}
	c.ch <- prometheus.MustNewConstHistogram(d, total, float64(sum)/scale, buckets, labels...)
}
