package server

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/querystats"
)

// Fastpath answers hits of some clients in the kernel. Its methods are safe for
// concurrent use.
type Fastpath interface {
	// Listen starts a generation in which the kernel answers for these addresses,
	// and returns its number. Once it has returned, no query gets an answer of an
	// earlier generation.
	Listen(addrs []netip.AddrPort) uint32
	// Heard records that a query of client with an ID arrived on an interface and was
	// answered. It reports whether the kernel may answer the next ones.
	Heard(client netip.AddrPort, id uint16, arrival int) bool
	// Put lets the kernel answer with a. It reports whether the kernel does.
	Put(a KernelAnswer) bool
	// Counts returns what the kernel has counted for a zone since the start.
	Counts(zone int) KernelCounts
}

// KernelZones is the number of zones whose hits a Fastpath counts.
const KernelZones = 64

// KernelAnswer is a cached answer as the kernel needs it. The slices must not be kept.
type KernelAnswer struct {
	Generation uint32 // the result of the Listen during which the answer was right
	Listener   netip.AddrPort
	Question   []byte // the key of the cache
	// Header has the flags and counts of the reply, from byte 2 of the header to its
	// end. RD is clear, and OPT is not counted.
	Header [10]byte
	Body   []byte // what follows the question
	TTLs   []byte // the offset of each TTL in the message, two bytes each, big endian

	KeepTTL            bool // TTLs do not count down
	Age, Left, Refresh time.Duration

	Zone   int // for Counts
	Type   int // index into KernelCounts.Requests
	Judged int // index into KernelCounts.Judged
	List   int // for KernelAnswered and KernelAsked
	Denial bool
}

// KernelCounts are counters of one zone. Sizes are the buckets of coredns_dns_request_size_bytes.
type KernelCounts struct {
	Requests   [2][KernelTypes]uint64 // IPv4, IPv6
	Rcodes     [16]uint64
	Lookups    [2]uint64 // success, denial
	Judged     [KernelJudged]uint64
	DNSSECOK   uint64
	QuerySizes [8]uint64
	QueryBytes uint64
	ReplySizes [8]uint64
	ReplyBytes uint64
}

// KernelTypes is one more than the number of query types that are counted.
const KernelTypes = 20

// KernelJudged is at least the number of results of the normalize directive, for A and
// for AAAA.
const KernelJudged = 24

// Types and results have their counters in KernelCounts, or this does not compile.
const _, _ = uint(KernelTypes - numTypes), uint(KernelJudged - 2*numNormalised)

// promotion copies a reader's hits to the kernel.
type promotion struct {
	lis *listener
	q   *Query
}

// promote lets the kernel answer the next queries like q, a UDP query that arrived on
// an interface and was answered, unless replies depend on more than the question.
func (p *promotion) promote(arrival int) {
	z := p.q.zone
	if z == nil || !p.q.plain || !p.lis.fast.Heard(p.q.client, p.q.id, arrival) {
		return
	}
	z.Cache.Promote(p.q.key, p.q.judged.paired(), p.q.start, &p.q.memory.answer, p)
}

// Copy implements cache.Copier.
func (p *promotion) Copy(e *cache.Entry, l cache.Lifetime) bool {
	q, msg := p.q, e.Msg()
	body := headerLen + len(q.key) - 1
	if e.Rcode() > rcodeMask || len(msg) < body {
		return false
	}
	a := KernelAnswer{
		Generation: q.zone.table.generation, Listener: p.lis.addr, Question: q.key,
		Body: msg[body:], TTLs: e.TTLOffsets(),
		KeepTTL: l.KeepTTL, Age: l.Age, Left: l.Left, Refresh: l.Refresh,
		Zone: q.zone.kernelZone, List: int(q.zone.stats.number), Judged: boolIndex(q.qtype == dns.TypeAAAA)*int(numNormalised) + int(q.judged),
		Type: int(typeIndexes[min(q.qtype, otherType)]), Denial: e.Kind() == cache.Denial,
	}
	copy(a.Header[:], msg[2:headerLen])
	flags := replyFlags(binary.BigEndian.Uint16(msg[2:]), q, true)
	binary.BigEndian.PutUint16(a.Header[:], flags&^flagRD)
	return p.lis.fast.Put(a)
}

// unchanged reports whether the reply is the entry, the upstream's answer, as it is.
func (v view) unchanged(e *cache.Entry) bool {
	return v == asIs(e, v.result) && v.result != rewritten && v.result != repaired && v.result != siblingUnknown
}

// paired reports whether a result depends on the entry of the other address type.
func (r normalised) paired() bool { return r == kept || r == siblingData }

// plainZone reports whether hits of z may be answered in the kernel: no directive
// wants to see them.
func plainZone(z *Zone) bool {
	return z.Cache != nil && z.Log == nil && z.Tap == nil && z.Actions == nil && !z.uncounted
}

// kernelCounter adds the kernel's counts of a zone to its other ones.
type kernelCounter struct {
	fast Fastpath // nil: none
	zone int
	seen KernelCounts
}

// add counts in s what the kernel has counted since the last call. The duration of
// these replies is below all bounds.
func (k *kernelCounter) add(s *statShard) {
	if k.fast == nil {
		return
	}
	now, last := k.fast.Counts(k.zone), &k.seen
	for f := range now.Requests {
		for t := range numTypes {
			s.requests[0][f][t].Add(now.Requests[f][t] - last.Requests[f][t])
		}
	}
	for r := range now.Rcodes {
		s.responses[pluginCache][r].Add(now.Rcodes[r] - last.Rcodes[r])
	}
	success, denial := now.Lookups[0]-last.Lookups[0], now.Lookups[1]-last.Lookups[1]
	s.lookups[lookupSuccess].Add(success)
	s.lookups[lookupDenial].Add(denial)
	for t := range s.judged {
		for r := range s.judged[t] {
			i := t*int(numNormalised) + r
			s.judged[t][r].Add(now.Judged[i] - last.Judged[i])
		}
	}
	s.duration[0].buckets[0].Add(success + denial)
	s.do.Add(now.DNSSECOK - last.DNSSECOK)
	for i := range now.QuerySizes {
		s.reqSize[0].buckets[i].Add(now.QuerySizes[i] - last.QuerySizes[i])
		s.respSize[0].buckets[i].Add(now.ReplySizes[i] - last.ReplySizes[i])
	}
	s.reqSize[0].sum.Add(now.QueryBytes - last.QueryBytes)
	s.respSize[0].sum.Add(now.ReplyBytes - last.ReplyBytes)
	k.seen = now
}

// countKernel makes z have the counts of fast. It returns the zone's number there, -1
// if there are too many zones.
func (m *Metrics) countKernel(z *zoneStats, fast Fastpath) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if z.kernel.fast == nil {
		if m.kernelZones == KernelZones {
			m.kernelFull = true
			return -1
		}
		z.kernel = kernelCounter{fast: fast, zone: m.kernelZones}
		m.kernelZones++
	}
	return z.kernel.zone
}

// KernelAnswered adds n answers of the kernel to a question to the statistics of
// queries. list is a KernelAnswer's, name is in wire format. It takes no lock of m.
func (m *Metrics) KernelAnswered(list int, name []byte, denied bool, n uint32) {
	m.stats.AddAnswered(name, querystats.Zone(list), denied, n)
}

// KernelAsked adds to the statistics of queries that a client got n answers of the
// kernel. KernelAnswered counts them, too. It takes no lock of m.
func (m *Metrics) KernelAsked(list int, client netip.Addr, n uint32) {
	m.stats.AddClient(client, querystats.Zone(list), n)
}

// warnKernelZones logs once that the kernel does not answer some zones for lack of
// counters. Those of zones that are no longer served stay taken.
func (s *Server) warnKernelZones() {
	s.metrics.mu.Lock()
	defer s.metrics.mu.Unlock()
	if s.metrics.kernelFull && !s.kernelWarned {
		s.kernelWarned = true
		s.log.Warn("the kernel has no counters for more zones: nodens answers the others itself until it is restarted", "limit", KernelZones)
	}
}

// fastpathOf returns the Fastpath of the bindings, and the addresses for which it answers.
// If no binding has one, it returns that of the current listeners, for Listen to end its
// answers, or nil.
func (s *Server) fastpathOf(bindings []Binding) (fast Fastpath, addrs []netip.AddrPort) {
	for _, l := range s.listeners {
		if l.fast != nil {
			fast = l.fast
		}
	}
	for _, b := range bindings {
		if b.Fastpath != nil {
			fast, addrs = b.Fastpath, append(addrs, b.Addr)
		}
	}
	return fast, addrs
}
