// Package state has the types of the state that nodens reports at /api/v1/state, and a
// client. It imports only the standard library, so that every viewer can use it.
//
// Durations are in seconds. Counters start at 0 with the process. A viewer computes rates
// from two States with the same Started.
package state

import "time"

// State is the state of one daemon.
type State struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	// Addresses serve DNS. They tell two daemons of a node apart that share
	// -status-address: each connection reaches one of them.
	Addresses []string  `json:"addresses"`
	Started   time.Time `json:"started"` // start of the process
	Time      time.Time `json:"time"`    // of this State
	Ready     bool      `json:"ready"`
	// Problems describes current failures, one sentence each. The doctor's findings are
	// at /api/v1/findings, because they cost probes.
	Problems []string `json:"problems"`

	Requests uint64            `json:"requests"` // queries, including those that the kernel answered
	Hits     uint64            `json:"hits"`     // replies from the cache
	Misses   uint64            `json:"misses"`   // lookups that the cache could not answer
	Failures uint64            `json:"failures"` // replies with SERVFAIL
	Rcodes   map[string]uint64 `json:"rcodes"`   // replies by rcode name

	Cache       Cache       `json:"cache"`
	Zones       []Zone      `json:"zones"`     // in the order of the names
	Upstreams   []Upstream  `json:"upstreams"` // in the order of zone and configuration
	Redirection Redirection `json:"redirection"`
	Fastpath    Fastpath    `json:"fastpath"`
	// Top has the lists of the last minute, 5 minutes and hour, see Windows.
	Top map[string]TopLists `json:"top"`
	// Corefile is the text in use, with its placeholders filled in.
	Corefile string `json:"corefile"`
}

// Windows are the keys of State.Top, from the shortest.
func Windows() []string { return []string{"1m", "5m", "60m"} }

// Cache is the memory of all caches.
type Cache struct {
	Bytes  int64 `json:"bytes"`
	Budget int64 `json:"budget"` // bytes
}

// Zone is a zone of a server block, on all its addresses.
type Zone struct {
	Name     string `json:"name"` // "dropped" for queries of no zone
	Requests uint64 `json:"requests"`
	Hits     uint64 `json:"hits"`
	Misses   uint64 `json:"misses"`
	Failures uint64 `json:"failures"` // replies with SERVFAIL
	// CacheEntries and CacheBytes are those of the zone's server block, whose zones
	// share a cache.
	CacheEntries int64 `json:"cacheEntries"`
	CacheBytes   int64 `json:"cacheBytes"`
	// Times from reading a query to making its reply. The kernel's answers are not
	// included.
	HitLatency  Latency `json:"hitLatency"`
	MissLatency Latency `json:"missLatency"`
}

// Latency has quantiles of the last minute, in seconds. Each is within 7% of the exact
// one, for upstreams within 13%. If Count is 0, they are 0.
type Latency struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
}

// Upstream is one upstream of a forward. Forwards of several zones that share an
// address share its counters.
type Upstream struct {
	Zone     string `json:"zone"`     // zones that use the forward, separated by spaces
	Address  string `json:"address"`  // host:port
	Protocol string `json:"protocol"` // udp, tcp or tls; with udp, large answers use TCP
	// Healthy is false while the forward marks the upstream dead.
	Healthy bool   `json:"healthy"`
	Queries uint64 `json:"queries"`
	// Failures are queries without a reply, including in-flight queries.
	Failures uint64  `json:"failures"`
	Latency  Latency `json:"latency"`
}

// Redirection is the state of the redirection of pods' sockets.
type Redirection struct {
	Mode     string    `json:"mode"`  // off, auto or on
	State    string    `json:"state"` // the state label of nodens_redirect_state
	Reason   string    `json:"reason,omitempty"`
	Services []Service `json:"services"`
}

// Service is a Service whose traffic is redirected.
type Service struct {
	Address   string   `json:"address"`
	Target    string   `json:"target"`
	Fallbacks []string `json:"fallbacks"`
}

// Fastpath is the state of the answers that the kernel gives.
type Fastpath struct {
	Mode    string `json:"mode"`    // off, auto or on
	State   string `json:"state"`   // off, on, or unavailable
	Answers uint64 `json:"answers"` // queries that the kernel answered
	Leases  uint64 `json:"leases"`  // clients that the kernel may answer
	Entries uint64 `json:"entries"` // answers in the kernel's table
	// Interfaces has the leases by interface that has the program.
	Interfaces map[string]uint64 `json:"interfaces"`
}

// TopLists has the most frequent values of one window, the most frequent first. The lists
// are of all zones, or of the zone that the request names with ?zone=NAME.
type TopLists struct {
	// Covers is the part of the window that the lists cover, in seconds. For some time
	// after the start, it is less than the window.
	Covers  float64 `json:"covers"`
	Queries uint64  `json:"queries"` // all queries, to compute shares
	Names   []Entry `json:"names"`
	Clients []Entry `json:"clients"`
	// NXDomain has the names whose reply was NXDOMAIN.
	NXDomain []Entry `json:"nxdomain"`
	// Slow has the names with the largest sum of waits, which is in Seconds. It leaves
	// out hits.
	Slow []Entry `json:"slow"`
}

// Entry is one value of a list.
type Entry struct {
	Key   string `json:"key"`             // a name in presentation form, or an address
	Label string `json:"label,omitempty"` // of a client: NAMESPACE/NAME of its pod, if known
	Zone  string `json:"zone,omitempty"`  // of a name
	Count uint64 `json:"count"`           // queries
	// Error bounds the error of Count, without the sampling error. The standard deviation
	// of that is below 1.5% for values with a share of 1%. Counts of Slow are lower
	// bounds.
	Error   uint64  `json:"error"`
	Seconds float64 `json:"seconds,omitempty"` // of Slow: the sum of the waits
}
