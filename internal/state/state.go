// Package state has the types of what a running nodens reports about itself at
// /api/v1/state, and a client. It imports the standard library only, so that every
// viewer of the state can use it.
//
// Durations are in seconds. Counters begin with the process; a viewer makes rates of
// two States with an equal Started.
package state

import "time"

// State is the state of one daemon.
type State struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Started time.Time `json:"started"` // of the process
	Time    time.Time `json:"time"`    // of this State
	Ready   bool      `json:"ready"`
	// Problems are sentences about what fails now. Findings of the doctor are apart,
	// at /api/v1/findings, because they cost probes.
	Problems []string `json:"problems"`

	Requests uint64            `json:"requests"` // queries, those that the kernel answered included
	Hits     uint64            `json:"hits"`     // replies from the cache
	Misses   uint64            `json:"misses"`   // lookups that the cache could not answer
	Failures uint64            `json:"failures"` // replies with SERVFAIL
	Rcodes   map[string]uint64 `json:"rcodes"`   // replies by the rcode's name

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
	// Times from reading a query to making its reply, without those of the kernel.
	HitLatency  Latency `json:"hitLatency"`
	MissLatency Latency `json:"missLatency"`
}

// Latency has quantiles of the last minute, in seconds, each within 7% of the exact one,
// of upstreams within 13%. They are 0 if Count is.
type Latency struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
}

// Upstream is one upstream of a forward. Forwards of several zones that share an
// address share its counters.
type Upstream struct {
	Zone     string `json:"zone"`     // those that use the forward, separated by spaces
	Address  string `json:"address"`  // host:port
	Protocol string `json:"protocol"` // udp, tcp or tls; with udp, large answers use TCP
	// Healthy is false while the forward marks the upstream dead.
	Healthy bool   `json:"healthy"`
	Queries uint64 `json:"queries"`
	// Failures are queries without a reply, those in flight included.
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
}

// TopLists are the most frequent values of one window, the most frequent first. The
// lists of a State are of all zones, or of the one that ?zone=NAME of the request
// names.
type TopLists struct {
	// Covers is the part of the window that the lists cover, in seconds. It is less
	// than the window after the start.
	Covers  float64 `json:"covers"`
	Queries uint64  `json:"queries"` // all, to make shares of
	Names   []Entry `json:"names"`
	Clients []Entry `json:"clients"`
	// NXDomain are the names whose reply was NXDOMAIN.
	NXDomain []Entry `json:"nxdomain"`
	// Slow are the names with the longest wait in all; Seconds has it. Hits are left
	// out.
	Slow []Entry `json:"slow"`
}

// Entry is one value of a list.
type Entry struct {
	Key   string `json:"key"`             // a name in presentation form, or an address
	Label string `json:"label,omitempty"` // of a client: NAMESPACE/NAME of its pod, if that is known
	Zone  string `json:"zone,omitempty"`  // of a name
	Count uint64 `json:"count"`           // queries
	// Error bounds the error of Count, apart from that of the sampling, whose
	// standard deviation is below 1.5% for values with a share of 1%. Counts of Slow are lower bounds.
	Error   uint64  `json:"error"`
	Seconds float64 `json:"seconds,omitempty"` // of Slow: the sum of the waits
}
