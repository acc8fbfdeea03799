package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/state"
)

// flags is the parsed command line of the daemon.
type flags struct {
	daemon.Options
	corefile         string
	supervise        *bool // nil: not given
	version, plugins bool
	uid              int // of the daemon
}

// parseFlags parses the daemon's command line. A flag may be written -x v, -x=v or
// --x=v, as in node-cache.
func parseFlags(args []string, stderr io.Writer) (*flags, error) {
	f := newFlags()
	run := func(context.Context, *cli.Command) error { return nil }
	c := terminal(io.Discard, stderr).Command("nodens", "", "", "", cmdline.Flags(f.set()), run)
	return f, c.Run(context.Background(), append([]string{"nodens"}, args...))
}

func newFlags() *flags { return &flags{Options: defaults(), uid: os.Geteuid()} }

// defaults has the defaults of flags that parse their value by a function.
func defaults() daemon.Options {
	return daemon.Options{
		ClusterDomain: "cluster.local", DNSPort: 53, HealthPort: 8080, SyncInterval: time.Minute, SetupMetrics: defaultSetupMetrics,
		Cluster: daemon.ClusterOptions{Namespace: "kube-system", Service: "kube-dns"},
	}
}

// node-cache's defaults.
const (
	defaultBaseCorefile = "/etc/coredns/Corefile.base"
	defaultCorefilePath = "/etc/Corefile"
	defaultKubeDNS      = "/etc/kube-dns"
	defaultSetupMetrics = "0.0.0.0:9353"
)

// set declares the flags: those of node-cache, with the same meaning, and our own.
func (f *flags) set() *flag.FlagSet {
	fs := flag.NewFlagSet("nodens", flag.ContinueOnError)
	f.setConfiguration(fs)
	f.setAddresses(fs)
	f.setHost(fs)
	f.setRedirect(fs)
	f.setCluster(fs)
	f.setLimits(fs)
	f.setLog(fs)
	fs.Func("cache-size", "`bytes` that cached answers of all zones may use, with K, M or G for 2^10, 2^20 or 2^30 (default half the memory limit of the cgroup, less below 128M, at most 512M; 64M without a limit)", func(s string) (err error) {
		f.CacheSize, err = config.ParseBytes(s)
		return err
	})
	fs.BoolFunc("supervise", "run the daemon in a child process, and start it again when it dies or hangs (default true if the Corefile has redirect auto or on)", func(s string) error {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("want true or false")
		}
		f.supervise = &on
		return nil
	})
	fs.StringVar(&f.CacheSnapshot, "cache-snapshot", "", "pass the cache to the next process: in `file` if that process starts after this one has ended, over file.sock if it starts before. Other users must not be able to write to the directory, for example /run/nodens (default: each process starts with an empty cache)")
	fs.BoolVar(&f.Hedge, "hedge", true, "send the query again when the upstream takes longer than usual to reply, not only after two seconds")
	fs.BoolVar(&f.KeepPrivileges, "keep-privileges", false, "keep the capabilities that nodens does not need after the start")
	fs.StringVar(&f.Status.Address, "status-address", state.DefaultAddress, "serve the daemon's state, its page and the lists of top names and clients by HTTP on `IP:port`; empty turns it off. An address that is not loopback needs -status-token-file")
	fs.StringVar(&f.Status.TokenFile, "status-token-file", "", "`file` with the token that requests to -status-address must have in the header X-Nodens-Token")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
	fs.BoolVar(&f.plugins, "plugins", false, "print the Corefile directives that nodens knows and exit")
	return fs
}

func (f *flags) setConfiguration(fs *flag.FlagSet) {
	fs.StringVar(&f.Corefile, "conf", "", "Corefile `file` without placeholders; without this flag and -localip, nodens runs an embedded sample")
	fs.StringVar(&f.corefile, "corefile", "", "the same as -conf, which takes precedence, `file` (default "+defaultCorefilePath+")")
	fs.StringVar(&f.BaseCorefile, "basecorefile", defaultBaseCorefile, "Corefile `file` with placeholders; if it exists, nodens uses it instead of -conf")
	fs.StringVar(&f.KubeDNS, "kubednscm", "", "`directory` of the mounted kube-dns ConfigMap, for stubDomains and upstreamNameservers (default "+defaultKubeDNS+" if it exists)")
	fs.StringVar(&f.UpstreamService, "upstreamsvc", "kube-dns", "`Service` whose cluster IP, from the environment, answers for the cluster domain")
	fs.Func("cluster-domain", "the cluster's `domain`; it replaces __PILLAR__DNS__DOMAIN__, and normalize does not change its names (default cluster.local)", func(s string) error {
		if _, ok := dns.IsDomainName(s); !ok || s == "" || s == "." {
			return errors.New("not a domain name")
		}
		f.ClusterDomain = strings.TrimSuffix(s, ".")
		return nil
	})
	fs.BoolVar(&f.Reload, "reloadwithsignal", false, "reload when the files change even if no block has the reload directive")
}

func (f *flags) setAddresses(fs *flag.FlagSet) {
	fs.Func("localip", "serve on these `addresses`, comma-separated, IPv4 and IPv6, and add them to the host", func(s string) (err error) {
		f.LocalIPs, err = config.ParseHostAddrs(s)
		return err
	})
	port := func(to *uint16) func(string) error {
		return func(s string) (err error) {
			*to, err = cmdline.Port(s)
			return err
		}
	}
	fs.Func("dns.port", "`port` of zones without a port (default 53)", port(&f.DNSPort))
	fs.Func("p", "the same as -dns.port, `port`", port(&f.DNSPort))
	fs.Func("health-port", "`port` of the health directive, for the netfilter rules (default 8080)", port(&f.HealthPort))
	fs.StringVar(&f.Prometheus, "prometheus-listen-address", ":9253", "`address` that replaces __PROMETHEUS__ENDPOINT__")
	fs.Func("metrics-listen-address", "with -localip, serve the metric of set-up errors on `address`; 0 turns it off (default "+defaultSetupMetrics+")", func(s string) (err error) {
		f.SetupMetrics, err = cmdline.HostPort(s)
		return err
	})
}

func (f *flags) setHost(fs *flag.FlagSet) {
	fs.BoolVar(&f.SetupInterface, "setupinterface", true, "add the local addresses to a dummy link, or to lo if the kernel has no dummy driver")
	fs.StringVar(&f.InterfaceName, "interfacename", "nodelocaldns", "`name` of the dummy link")
	fs.BoolVar(&f.SetupRules, "setupiptables", true, "exempt the local addresses from connection tracking, by our own nftables table, and accept their DNS traffic in other tables' chains that drop by default")
	fs.BoolVar(&f.SkipTeardown, "skipteardown", false, "do not remove addresses and rules from the host on exit")
	fs.Func("syncinterval", "check the whole host set-up at this interval, in `seconds`; when the kernel reports a change, nodens repairs it at once (default 60)", func(s string) (err error) {
		f.SyncInterval, err = cmdline.Interval(s)
		return err
	})
	fs.StringVar(&f.PIDFile, "pidfile", "", "write the process ID to `file` once serving, and remove it on exit")
}

func (f *flags) setLog(fs *flag.FlagSet) {
	fs.Func("log-format", "write the log, the query log and the line with the addresses as `text` or json (default text)", func(s string) error {
		f.LogJSON = s == "json"
		if s != "json" && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
	fs.Func("log-level", "log messages of this `level` and above: debug, info, warn or error (default info)", func(s string) error {
		if !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
			return errors.New("want debug, info, warn or error")
		}
		return f.LogLevel.UnmarshalText([]byte(s))
	})
	fs.BoolFunc("quiet", "the same as -log-level warn", func(s string) error {
		on, err := strconv.ParseBool(s)
		if err == nil && on {
			f.LogLevel = slog.LevelWarn
		}
		return err
	})
}

// resolve fills in what the command line leaves open: node-cache's paths if nodens
// replaces it, else the sample.
func (f *flags) resolve() {
	if f.KubeDNS == "" && f.exists(defaultKubeDNS) {
		f.KubeDNS = defaultKubeDNS
	}
	if f.Corefile == "" {
		f.Corefile = f.corefile
	}
	if f.Corefile != "" || len(f.LocalIPs) > 0 || f.exists(f.BaseCorefile) {
		if f.Corefile == "" {
			f.Corefile = defaultCorefilePath
		}
		return
	}
	f.Sample = true
	if f.uid == 0 {
		f.LocalIPs = []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 10})}
		return
	}
	f.LocalIPs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	if f.DNSPort == 53 {
		f.DNSPort = 5300
	}
}

func (f *flags) exists(path string) bool {
	_, err := os.Stat(f.Path(path))
	return err == nil
}
