package server

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/querystats"
	"github.com/nodens-dns/nodens/internal/server/action"
)

// Metrics counts queries and replies, under CoreDNS's names where the meaning is
// the same. Queries are counted in arrays of atomics, one set per reader, which
// are summed when scraped. Counting looks up no label.
type Metrics struct {
	workers int
	stats   *querystats.Stats

	discarded                atomic.Uint64 // messages that are not queries
	sendErrors               atomic.Uint64
	tcpRejected, tcpEvicted  atomic.Uint64
	missLimited              atomic.Uint64
	clientLimited, outsiders atomic.Uint64
	tcpUnread                atomic.Uint64
	panics                   atomic.Uint64

	mu          sync.Mutex
	zones       map[[2]string]*zoneStats // by server and zone label; never removed
	kernelZones int                      // of them have a number in the kernel
	kernelFull  bool                     // others got none
	descs       *descs
}

// NewMetrics makes the counters and registers them. workers is the number of
// readers of an address, at least 1.
func NewMetrics(reg prometheus.Registerer, workers int) (*Metrics, error) {
	m := &Metrics{workers: workers, stats: querystats.New(time.Now()), zones: make(map[[2]string]*zoneStats), descs: newDescs()}
	return m, reg.Register(m)
}

// QueryStats returns the statistics of queries.
func (m *Metrics) QueryStats() *querystats.Stats { return m.stats }

// Queries returns the number of queries so far, without those of a Prober.
func (m *Metrics) Queries() (n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, z := range m.zones {
		for _, s := range z.shards {
			for p := range s.requests {
				for f := range s.requests[p] {
					for t := range s.requests[p][f] {
						n += s.requests[p][f][t].Load()
					}
				}
			}
		}
	}
	return n
}

// zone returns the counters of a zone on one address.
func (m *Metrics) zone(server, zone string) *zoneStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := [2]string{server, zone}
	z, ok := m.zones[k]
	if !ok {
		z = m.newStats()
		z.number, z.listed = m.stats.Zone(zone), true
		m.zones[k] = z
	}
	return z
}

// statsOf is zone. For an uncounted zone it returns counters that are not
// exported.
func (m *Metrics) statsOf(server string, z *Zone) *zoneStats {
	if z.uncounted {
		return m.newStats()
	}
	return m.zone(server, z.Name)
}

func (m *Metrics) newStats() *zoneStats {
	z := new(zoneStats)
	for range m.workers + 1 {
		z.shards = append(z.shards, new(statShard))
	}
	return z
}

// Label values, all bounded.
var (
	protoLabels  = [...]string{"udp", "tcp"}
	familyLabels = [...]string{"1", "2"} // IANA address family numbers
	pluginLabels = [...]string{"", "cache", "forward", "hosts", "sample", "acl", "template", "whoami"}
	// typeCodes are the types with their own label in coredns_dns_requests_total.
	typeCodes = [...]uint16{
		dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeSOA, dns.TypeCNAME, dns.TypePTR, dns.TypeTXT, dns.TypeNS,
		dns.TypeSRV, dns.TypeDS, dns.TypeDNSKEY, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeHTTPS,
		dns.TypeSVCB, dns.TypeNAPTR, dns.TypeANY,
	}
	durationBounds = prometheus.ExponentialBuckets(0.00025, 2, 16) // seconds
	sizeBounds     = []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
	// The same bounds in the unit of histogram.observe.
	durationSteps = inUnits(durationBounds, 1e9)
	sizeSteps     = inUnits(sizeBounds, 1)
)

const (
	numTypes   = len(typeCodes) + 1 // and "other"
	numRcodes  = 25                 // 0 to 23, and "other"
	numPlugins = len(pluginLabels)
)

// lookup is the result of a cache lookup.
type lookup int

const (
	lookupNone lookup = iota // the zone has no cache
	lookupMiss
	lookupSuccess
	lookupDenial
	lookupServfail
	numLookups
)

// zoneStats are the counters of one zone on one address.
type zoneStats struct {
	shards []*statShard
	number querystats.Zone
	listed bool                      // whether the statistics of queries list the zone
	cut    atomic.Pointer[SearchCut] // of the zone now; may be nil
	kernel kernelCounter             // Metrics.mu guards it
}

// rest is the shard that UDP readers do not use.
func (z *zoneStats) rest() *statShard { return z.shards[len(z.shards)-1] }

// One UDP reader writes a statShard. TCP connections and misses write the last
// shard.
type statShard struct {
	requests   [2][2][numTypes]atomic.Uint64
	responses  [numPlugins][numRcodes]atomic.Uint64
	lookups    [numLookups]atomic.Uint64
	do         atomic.Uint64
	stale      atomic.Uint64
	prefetch   atomic.Uint64
	judged     [2][numNormalised]atomic.Uint64 // A and AAAA
	siblings   [numSiblingSources]atomic.Uint64
	judgedBy   [action.NumACLVerdicts]atomic.Uint64
	translated atomic.Uint64
	cuts       atomic.Uint64 // replies that follow from a cut
	waited     histogram     // for a sibling, nanoseconds
	duration   [2]histogram  // nanoseconds, of hits (0) and misses (1)
	reqSize    [2]histogram  // bytes, by protocol
	respSize   [2]histogram
	_          [64]byte

	// Of the last shard only.
	cutsFound, cutProbes, cutContradictions atomic.Uint64
}

// histogram is a Prometheus histogram with at most 16 bounds.
type histogram struct {
	buckets [17]atomic.Uint64
	sum     atomic.Uint64
}

// inUnits makes bounds multiples of 1/scale.
func inUnits(bounds []float64, scale float64) []uint64 {
	steps := make([]uint64, len(bounds))
	for i, b := range bounds {
		steps[i] = uint64(math.Round(b * scale))
	}
	return steps
}

// observe counts v. bounds must be in the unit of v.
func (h *histogram) observe(v uint64, bounds []uint64) {
	i := 0
	for i < len(bounds) && v > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(v)
}

// otherType and all types above it share the index typeIndexes[otherType].
const otherType = 256

// typeIndexes has the index in typeCodes of each type.
var typeIndexes = func() (t [otherType + 1]uint8) {
	for i := range t {
		t[i] = uint8(len(typeCodes))
	}
	for i, code := range typeCodes {
		t[code] = uint8(i)
	}
	return t
}()

func pluginIndex(name string) int {
	for i, p := range pluginLabels {
		if p == name {
			return i
		}
	}
	return 0
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// outcome describes one reply, for metrics and logs.
type outcome struct {
	rcode  int // in the header; set by record
	size   int // bytes; set by record
	plugin int // index into pluginLabels
	lookup lookup
	stale  bool
	waited bool // the reply is that of a miss
	took   time.Duration

	normalised normalised
	cut        bool // the reply follows from a cut
	dropped    bool // there is no reply
}

// tally has the values that are counted for one query and its reply.
type tally struct {
	outcome
	stats  *zoneStats
	qtype  uint16
	asked  int // bytes of the query
	proto  int // index into protoLabels
	family int // index into familyLabels
	do     bool
}

// count counts t.
func (t *tally) count(worker int) {
	z, o := t.stats, &t.outcome
	s := z.shards[min(worker, len(z.shards)-1)]
	s.requests[t.proto][t.family][typeIndexes[min(t.qtype, otherType)]].Add(1)
	s.responses[o.plugin][min(o.rcode, numRcodes-1)].Add(1)
	s.lookups[o.lookup].Add(1)
	if t.do {
		s.do.Add(1)
	}
	if o.stale {
		s.stale.Add(1)
	}
	if o.cut {
		s.cuts.Add(1)
	}
	if o.normalised != notJudged {
		z.judged(worker, t.qtype, o.normalised)
	}
	took := &s.duration[0]
	if o.waited || o.plugin != pluginCache {
		took = &s.duration[1]
	}
	took.observe(uint64(max(o.took, 0)), durationSteps)
	s.reqSize[t.proto].observe(uint64(t.asked), sizeSteps)
	s.respSize[t.proto].observe(uint64(o.size), sizeSteps)
}

// judged counts one result of the normalize directive.
func (z *zoneStats) judged(worker int, qtype uint16, r normalised) {
	z.shards[min(worker, len(z.shards)-1)].judged[boolIndex(qtype == dns.TypeAAAA)][r].Add(1)
}

// sibling counts the source of the other type's answer.
func (z *zoneStats) sibling(from siblingSource) { z.rest().siblings[from].Add(1) }

// siblingWaited counts how long a reply waited for a sibling.
func (z *zoneStats) siblingWaited(d time.Duration) {
	z.rest().waited.observe(uint64(max(d, 0)), durationSteps)
}

// pluginCache is the index of "cache" in pluginLabels.
const pluginCache = 1

func rcodeLabel(i int) string {
	if i == numRcodes-1 {
		return "other"
	}
	if s, ok := dns.RcodeToString[i]; ok {
		return s
	}
	return strconv.Itoa(i)
}

func typeLabel(i int) string {
	if i == len(typeCodes) {
		return "other"
	}
	return dns.TypeToString[typeCodes[i]]
}

// refused counts a query that an ACL does not allow.
func (z *zoneStats) refused(v action.ACLVerdict) { z.rest().judgedBy[v].Add(1) }

// synthesised counts a reply that DNS64 has translated.
func (z *zoneStats) synthesised() { z.rest().translated.Add(1) }
