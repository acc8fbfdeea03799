package server

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/server/dnsname"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// Source answers questions on a cache miss. Exchange returns an error that wraps
// upstream.ErrNotMine to pass the question on to the next source. It must not modify
// m or keep it after it returns.
type Source interface {
	Exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error)
}

// Starter is a Source that needs no goroutine to wait for an answer.
type Starter interface {
	// Start is Exchange, until end at the latest. It calls done once, unless
	// cancel was called before. After an error it may call done again, with a late
	// answer for the cache. done does not block. cancel may be nil.
	Start(m *dns.Msg, end time.Time, done func(*dns.Msg, error)) (cancel func())
}

// ClientSource is a source whose answer may depend on the client and on other names.
type ClientSource interface {
	// Answer returns a nil Msg to pass the question on to the next source.
	Answer(r *action.Request) (action.Reply, error)
	// PerClient reports whether the answer may depend on the client.
	PerClient() bool
}

// NamedSource is a source and the directive that configured it, which is the
// plugin label of coredns_dns_responses_total. Either Source or Client is set.
type NamedSource struct {
	Name string
	Source
	Client ClientSource
}

// Zone is one zone of a server block. It is immutable after Apply.
type Zone struct {
	Name    string        // fully qualified, lower case, presentation form
	Cache   *cache.Cache  // nil: answers are not cached
	Sources []NamedSource // tried in order
	Log     *QueryLog     // nil: queries are not logged
	Errors  *ErrorLog     // nil: failures are not logged
	Tap     upstream.Tap  // receives the messages of clients; may be nil
	Loop    *LoopProbe    // nil: no loop detection

	Normalise *Normalise // nil: empty answers are passed on unchanged
	Actions   *Actions   // nil: none
	Cut       *SearchCut // nil: no cuts; not nil: there is a Cache

	uncounted bool // in no metric

	active atomic.Int64 // slots of misses in use
	serial uint32       // distinguishes equal questions of different zones in flight
}

// noZone is CoreDNS's zone label of queries that belong to no zone.
const noZone = "dropped"

// peek looks a key up for a caller that does not refresh the entry. It copies
// the entry to e, or to a new one if e is nil.
func (z *Zone) peek(key []byte, now time.Time, e *cache.Entry) cache.Hit {
	if z.Cache == nil {
		return cache.Hit{}
	}
	hit := z.Cache.GetInto(key, now, e)
	if hit.Refresh {
		hit.Refresh = false
		z.Cache.RefreshDone(key)
	}
	return hit
}

// zoneTable finds the zone of a name by the longest match.
type zoneTable struct {
	local      netip.AddrPort        // of the listener
	tcp        TCPTimeouts           // of the listener
	guarded    bool                  // Binding.Guarded
	generation uint32                // of Binding.Fastpath
	zones      map[string]*boundZone // by lower-case wire-format name
	lengths    [maxNameLen + 1]bool  // of their names, to skip most suffixes of a name
}

// boundZone is a Zone as one listener serves it, with its own counters.
type boundZone struct {
	*Zone
	stats      *zoneStats
	table      *zoneTable // that has it
	plain      bool       // hits may be answered by the kernel
	kernelZone int        // number of its counts there

	plugins   []int  // of Sources, indexes into pluginLabels
	perClient bool   // a source's answer depends on the client
	blocking  bool   // a source may block
	cutAt     int    // of Sources, the one that cuts replace; -1: none
	missed    lookup // the result under which a miss is counted
}

// find returns the longest zone that name, in lower-case wire format, is at or
// below, nil if there is none.
func (t *zoneTable) find(name []byte) *boundZone {
	for {
		if t.lengths[len(name)] {
			if z, ok := t.zones[string(name)]; ok {
				return z
			}
		}
		if len(name) <= 1 {
			return nil
		}
		name = name[1+int(name[0]):]
	}
}

// versionBind is the name that Ask queries. A Server answers it by itself, with any
// zones.
const versionBind = "\x07version\x04bind\x00"

// rewritesClass reports whether q's zone rewrites its class, which is not
// served. Then it sets q.zone. Transfers are refused in any class.
func (t *zoneTable) rewritesClass(q *Query) bool {
	switch {
	case q.qclass == dns.ClassINET, string(q.lower) == versionBind, q.qtype == dns.TypeAXFR, q.qtype == dns.TypeIXFR:
		return false
	}
	z := t.find(q.lower)
	if z == nil || z.Actions == nil || !z.Actions.Rewrite.RewritesClass(q.qclass) {
		return false
	}
	q.zone = z
	return true
}

// newZoneTable builds the table of b's listener.
func newZoneTable(b Binding, m *Metrics) (*zoneTable, error) {
	t := &zoneTable{local: b.Addr, guarded: b.Guarded, zones: make(map[string]*boundZone, len(b.Zones))}
	server := "dns://" + b.Addr.String() // the label in the metrics
	for _, z := range b.Zones {
		name, err := dnsname.Pack(z.Name)
		if err != nil {
			return nil, fmt.Errorf("zone %q: %w", z.Name, err)
		}
		key := string(name)
		if _, dup := t.zones[key]; dup {
			return nil, fmt.Errorf("zone %q is served twice on %s", z.Name, server)
		}
		t.lengths[len(key)] = true
		bound := t.bind(z, m.statsOf(server, z))
		if b.Fastpath != nil && plainZone(z) {
			bound.kernelZone = m.countKernel(bound.stats, b.Fastpath)
			bound.plain = bound.kernelZone >= 0
		}
		t.zones[key] = bound
	}
	return t, nil
}

// bind makes z a zone of t.
func (t *zoneTable) bind(z *Zone, stats *zoneStats) *boundZone {
	b := &boundZone{Zone: z, stats: stats, table: t, cutAt: -1}
	if z.Cut != nil {
		b.cutAt = slices.IndexFunc(z.Sources, func(s NamedSource) bool { return s.Name == "forward" })
	}
	stats.cut.Store(z.Cut)
	if z.Cache != nil {
		b.missed = lookupMiss
	}
	for _, src := range z.Sources {
		b.plugins = append(b.plugins, pluginIndex(src.Name))
		b.perClient = b.perClient || src.Client != nil && src.Client.PerClient()
		_, starts := src.Source.(Starter)
		b.blocking = b.blocking || !starts
	}
	return b
}
