// Package config turns a Corefile into typed values.
//
// It opens no sockets, resolves no names and reads no clock. Imported files and
// environment variables come from a Source. Files, interfaces and addresses that a
// Corefile names are checked when the daemon starts.
package config

import (
	"log/slog"
	"net/netip"
	"regexp"
	"time"
)

// Config is a Corefile with its snippets and imports expanded.
type Config struct {
	File     string
	Corefile string   // the text of File, without its imports
	Files    []string // File and every imported file, each once
	Blocks   []*Block // in file order
	// Warnings are of type *Error, in the order of the file. They are about text that
	// CoreDNS accepts silently and that has no effect.
	Warnings []error
}

// Block is a server block. A nil pointer or an empty slice means that the directive
// is absent.
type Block struct {
	File  string // of the first zone: the Corefile or an imported file
	Line  int    // of the first zone
	Zones []Zone

	Bind       []string // IP addresses or interface names; empty: every address
	BindExcept []string // IP addresses of interfaces to exclude

	ACL         []*ACL // in file order
	BufSize     *BufSize
	Cache       *Cache
	Debug       bool
	DNS64       *DNS64
	Errors      *Errors
	Fastpath    *Fastpath
	Forwards    []*Forward // in file order
	Health      *Health
	Hosts       *Hosts
	LoadBalance *LoadBalance
	Log         []*Log // in file order
	Dnstap      []*Dnstap
	Loop        bool
	Metadata    bool
	Normalize   *Normalize
	NSID        *NSID
	Pprof       *Pprof
	Prometheus  *Prometheus
	Ready       *Ready
	Redirect    *Redirect
	Reload      *Reload
	Rewrites    []*Rewrite // in file order
	Sample      bool       // answer from the built-in sample zone
	SearchCut   *SearchCut
	Templates   []*RecordTemplate // in file order
	Timeouts    *Timeouts
	Whoami      bool
}

// Zone is a zone of a server block.
type Zone struct {
	Name string // fully qualified, lower case, presentation form
	Port uint16 // 0: the default port
	Line int
}

// Cache is the cache directive. Parse fills in CoreDNS's defaults.
type Cache struct {
	Line     int
	Zones    []string // fully qualified; empty: all zones of the block
	Success  CacheClass
	Denial   CacheClass
	ServFail time.Duration // 0: failures are not cached; default 5 s, at most 5 min
	KeepTTL  bool
	Prefetch *Prefetch
	Stale    *ServeStale
}

// CacheClass limits positive or negative answers.
type CacheClass struct {
	Entries      int           // maximum for the block; default 9984
	MaxTTL       time.Duration // default 3600 s for success, 1800 s for denial
	MinTTL       time.Duration // default 5 s
	MinTTLSet    bool          // the Corefile sets MinTTL
	Disabled     bool
	DisabledOnly []string // with Disabled: the zones that are not cached; empty: all
}

// Prefetch refreshes popular answers before they expire.
type Prefetch struct {
	Amount     int           // queries that make an answer popular
	Duration   time.Duration // maximum time between two of them; default 1 min
	Percentage int           // remaining part of the TTL that starts the refresh, 10 to 90; default 10
}

// ServeStale answers from expired entries when the upstream fails.
type ServeStale struct {
	For    time.Duration // default 1 h
	Verify bool          // query the upstream first, and use the expired entry only if that fails
}

// Errors is the errors directive.
type Errors struct {
	Line        int
	Consolidate []Consolidate
}

// Consolidate counts matching errors and logs one line per period.
type Consolidate struct {
	Period  time.Duration
	Pattern *regexp.Regexp
	Level   slog.Level // of the summary; default LevelError
	// ShowFirst logs the first error of a period at once, at Level.
	ShowFirst bool
}

// Policy is how a Forward selects one of its healthy upstreams.
type Policy string

const (
	PolicyRandom     Policy = "random"
	PolicyRoundRobin Policy = "round_robin"
	PolicySequential Policy = "sequential"
)

// Forward is a forward directive.
type Forward struct {
	Line          int
	From          string // fully qualified; the directive applies to names in it
	To            []Upstream
	Except        []string // fully qualified
	ForceTCP      bool
	PreferUDP     bool
	Policy        Policy        // default random
	MaxFails      int           // default 2; 0: an upstream never becomes unhealthy
	Expire        time.Duration // idle connections close after this; default 10 s
	HealthCheck   HealthCheck
	MaxConcurrent int // maximum number of queries in flight; 0: no limit
	TLS           *TLS
	TLSServerName string
	// KubernetesEndpoints forwards to the endpoints of the cluster DNS that the API
	// server reports, and to To only while none is known.
	KubernetesEndpoints bool
}

// Upstream is a TO argument of forward: an address or the path of a resolv.conf.
type Upstream struct {
	Addr       netip.AddrPort // port defaults: 53, or 853 with TLS
	TLS        bool           // tls://
	ServerName string         // from tls://ADDR%NAME; else empty
	ResolvConf string         // path; Addr is then invalid
}

// HealthCheck is the health_check option of forward.
type HealthCheck struct {
	Interval         time.Duration // default 500 ms
	RecursionDesired bool          // default true; no_rec clears it
	Domain           string        // fully qualified; default "."
}

// TLS is the tls option of forward. Each file name may be empty.
type TLS struct {
	Cert, Key, CA string
}

// Health is the health directive.
type Health struct {
	Line     int
	Addr     string        // host:port; default ":8080"
	Lameduck time.Duration // 0: none
}

// Ready is the ready directive.
type Ready struct {
	Line int
	Addr string // host:port; default ":8181"
}

// Prometheus is the prometheus directive.
type Prometheus struct {
	Line int
	Addr string // host:port; default "localhost:9153"
}

// Reload is the reload directive. With Interval 0 the file is not watched.
type Reload struct {
	Line     int
	Interval time.Duration // default 30 s
	Jitter   time.Duration // default 15 s, at most half of Interval
}

// LogClass is a class of replies to log.
type LogClass string

const (
	LogAll     LogClass = "all"
	LogSuccess LogClass = "success"
	LogDenial  LogClass = "denial"
	LogError   LogClass = "error"
)

// Log is a log directive.
type Log struct {
	Line    int
	Names   []string   // fully qualified; default "."
	Format  string     // empty: key=value pairs
	Classes []LogClass // default LogAll
}

// Dnstap is a dnstap directive.
type Dnstap struct {
	Line             int
	Network, Address string // of the reader; the network is unix or tcp
	TLS, SkipVerify  bool
	Full             bool // include the DNS messages
	// Identity defaults to the host's name, Version to that of nodens.
	Identity, Version, Extra string
}

// Hosts is the hosts directive.
type Hosts struct {
	Line        int
	Path        string   // default /etc/hosts
	Zones       []string // fully qualified; empty: all zones of the block
	Inline      []HostsEntry
	TTL         uint32 // seconds; default 3600
	NoReverse   bool
	Reload      time.Duration // default 5 s; 0: the file is read once
	Fallthrough []string      // fully qualified; nil: none; "." for all
	// FallthroughUnsupported also lets types other than A, AAAA and PTR fall through.
	FallthroughUnsupported bool
}

// HostsEntry is an inline entry of hosts: an address and its names.
type HostsEntry struct {
	Addr  netip.Addr
	Names []string // fully qualified, lower case
}
