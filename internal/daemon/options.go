package daemon

import (
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/nodens-dns/nodens/internal/supervise"
)

// Options is the command line and the environment of a daemon.
type Options struct {
	Corefile        string // file
	BaseCorefile    string // file with placeholders; used in place of Corefile if it exists
	CorefileText    []byte // unless nil, the text of Corefile, which is then only a name
	Sample          bool   // run the embedded Corefile
	KubeDNS         string // directory of the mounted kube-dns ConfigMap; empty: none
	UpstreamService string // Service that answers for ClusterDomain; its IP is in the environment
	ClusterDomain   string // without the final dot
	Reload          bool   // reload when the files change, even without the reload directive

	LocalIPs   []netip.Addr
	DNSPort    uint16
	HealthPort uint16

	SetupInterface bool
	InterfaceName  string
	SetupRules     bool
	SkipTeardown   bool
	SyncInterval   time.Duration

	SetupMetrics string // host:port; empty: off
	Prometheus   string // address that replaces __PROMETHEUS__ENDPOINT__
	PIDFile      string // empty: none

	Status   StatusOptions
	Redirect RedirectOptions
	Cluster  ClusterOptions
	Limits   LimitOptions

	CacheSize     int64  // bytes; 0: see limits
	CacheSnapshot string // file; empty: the cache is not handed over

	Hedge          bool
	KeepPrivileges bool

	LogJSON  bool       // text otherwise
	LogLevel slog.Level // the lowest that is logged, unless the Corefile has debug

	Files string // directory that absolute file names start at; empty: /
	Dir   string // absolute; relative file names start here; empty: the working directory

	Root           fs.FS  // has /proc and /sys, for the memory limit
	Version        string // of the binary
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Signals        <-chan os.Signal     // each one requests a reload
	Supervisor     *supervise.Heartbeat // nil: there is no supervisor
}

// StatusOptions configure the endpoint that reports the daemon's state.
type StatusOptions struct {
	Address   string // host:port; empty: off
	TokenFile string // empty: no token, which requires a loopback address
}

// RedirectOptions are the settings of redirection that differ from node to node.
type RedirectOptions struct {
	Kubepods string       // directory; empty: find it
	PinDir   string       // in a BPF file system
	PodLogs  string       // directory
	NodeIPs  []netip.Addr // empty: find them
}

// ClusterOptions name the Service whose endpoints the daemon learns from the
// API server, and the service account that it uses.
type ClusterOptions struct {
	Namespace, Service string
	Zone               string // of the node; empty: $NODE_ZONE
	Account            string // directory
}

// LogHandler returns a handler in the format of the options.
func (o *Options) LogHandler(w io.Writer, level slog.Leveler) slog.Handler {
	opts := &slog.HandlerOptions{Level: level}
	if o.LogJSON {
		return slog.NewJSONHandler(w, opts)
	}
	return slog.NewTextHandler(w, opts)
}

// LimitOptions restrict which clients get answers, and what one client may use.
type LimitOptions struct {
	Everybody         bool // answer clients from outside the node and its pods, too
	Misses            int  // in flight; these and the following, 0: see limits
	MissesPerClient   int
	TCP, TCPPerClient int // connections of one address
}
