// Package config turns a Corefile into typed values.
//
// Nothing in here opens sockets, resolves names or looks at the clock. Parse
// opens the files that an import line names and reads the environment for
// {$NAME}; everything else that touches the host happens where
// the values are used.
package config

import (
	"log/slog"
	"net/netip"
	"regexp"
	"time"
)

// Config is one Corefile, its snippets and imports resolved.
type Config struct {
	File   string
	Files  []string // File and every file that an import line took in, each once
	Blocks []*Block // in file order
	// Warnings are *Error for what CoreDNS takes without a word and what
	// has no effect here either, in the order of the file.
	Warnings []error
}

// Block is one server block: the zones it answers for and how. A nil pointer
// or empty slice means that the directive is absent.
type Block struct {
	File  string // that of the first zone: the Corefile or one it imports
	Line  int    // of the first zone
	Zones []Zone

	Bind       []string // IP addresses or interface names; empty: every address
	BindExcept []string // IP addresses left out when an interface is expanded

	ACL         []*ACL // in file order
	BufSize     *BufSize
	Cache       *Cache
	Debug       bool
	DNS64       *DNS64
	Errors      *Errors
	Forwards    []*Forward // in file order
	Health      *Health
	Hosts       *Hosts
	LoadBalance *LoadBalance
	Log         []*Log // in file order
	Loop        bool
	Metadata    bool
	Normalize   *Normalize
	NSID        *NSID
	Pprof       *Pprof
	Prometheus  *Prometheus
	Ready       *Ready
	Redirect    *Redirect
	Reload      *Reload
	Rewrites    []*Rewrite        // in file order
	Sample      bool              // answer from the embedded sample of a cluster zone
	Templates   []*RecordTemplate // in file order
	Timeouts    *Timeouts
	Whoami      bool
}

// Zone is one key of a server block.
type Zone struct {
	Name string // fully qualified, lower case, presentation form
	Port uint16 // 0: the default port
	Line int
}

// Cache is the cache directive. The zero value of a duration means that the
// Corefile did not say; Parse fills in CoreDNS's defaults everywhere else.
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

// CacheClass bounds one kind of cached answer, positive or negative.
type CacheClass struct {
	Entries      int           // at most so many, over all the block's zones; default 9984
	MaxTTL       time.Duration // default 3600 s for success, 1800 s for denial
	MinTTL       time.Duration // default 5 s
	MinTTLSet    bool          // MinTTL stands in the Corefile
	Disabled     bool
	DisabledOnly []string // with Disabled: the zones it applies to; empty: all
}

// Prefetch refreshes popular names before they expire.
type Prefetch struct {
	Amount     int           // queries seen before a name counts as popular
	Duration   time.Duration // the longest gap between two of them; default 1 min
	Percentage int           // of the TTL left when the refresh starts, 10–90; default 10
}

// ServeStale keeps expired answers for use when the upstream fails.
type ServeStale struct {
	For    time.Duration // default 1 h
	Verify bool          // ask upstream first, go stale only if that fails
}

// Errors is the errors directive.
type Errors struct {
	Line        int
	Consolidate []Consolidate
}

// Consolidate counts matching errors and logs one line a period.
type Consolidate struct {
	Period  time.Duration
	Pattern *regexp.Regexp
	Level   slog.Level // of the summary; default LevelError
	// ShowFirst logs the first error of a period as it comes, at Level.
	ShowFirst bool
}

// Policy names how a Forward picks among its healthy upstreams.
type Policy string

const (
	PolicyRandom     Policy = "random"
	PolicyRoundRobin Policy = "round_robin"
	PolicySequential Policy = "sequential"
)

// Forward is one forward directive.
type Forward struct {
	Line          int
	From          string // fully qualified; names outside are not this directive's
	To            []Upstream
	Except        []string // fully qualified
	ForceTCP      bool
	PreferUDP     bool
	Policy        Policy        // default random
	MaxFails      int           // default 2; 0: an upstream is never taken for dead
	Expire        time.Duration // idle connections close after this; default 10 s
	HealthCheck   HealthCheck
	MaxConcurrent int // queries under way at once; 0: no limit
	TLS           *TLS
	TLSServerName string
	// KubernetesEndpoints asks the endpoints of the cluster's DNS, as the API
	// server has them; To only while none is known.
	KubernetesEndpoints bool
}

// Upstream is one TO argument of forward: either an address or the path of a
// resolv.conf.
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

// TLS is the tls option of forward: file names, any of them empty.
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

// Reload is the reload directive. Interval 0 turns watching the file off.
type Reload struct {
	Line     int
	Interval time.Duration // default 30 s
	Jitter   time.Duration // default 15 s, at most half of Interval
}

// LogClass is a kind of reply that the query log can be restricted to.
type LogClass string

const (
	LogAll     LogClass = "all"
	LogSuccess LogClass = "success"
	LogDenial  LogClass = "denial"
	LogError   LogClass = "error"
)

// Log is one log directive.
type Log struct {
	Line    int
	Names   []string   // fully qualified; default "."
	Format  string     // empty: key=value pairs
	Classes []LogClass // default LogAll
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
	// FallthroughUnsupported lets types other than A, AAAA and PTR fall through.
	FallthroughUnsupported bool
}

// HostsEntry is one inline line of hosts: an address and its names.
type HostsEntry struct {
	Addr  netip.Addr
	Names []string // fully qualified, lower case
}
