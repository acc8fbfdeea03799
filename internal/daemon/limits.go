package daemon

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/server"
)

// Memory costs in bytes, with room for the garbage collector. docs/cache.md has
// them, too.
const (
	processPrice = 24 << 20 // a daemon without load
	programBytes = 16 << 20 // part of processPrice: the program's file
	missPrice    = 4 << 10  // a query being resolved, with its part of an upstream socket
	connPrice    = 64 << 10 // a TCP connection of a client
	streamPrice  = 32 << 10 // a TCP connection to an upstream

	missesPerSocket = 4        // that share an upstream UDP socket, at the limit
	socketKernel    = 3 << 10  // kernel memory of such a socket, part of missPrice
	connKernel      = 44 << 10 // kernel memory of a client's connection, see server.tcpSendBuffer
	streamKernel    = 5 << 10  // kernel memory of a connection to an upstream
)

// Bounds of the defaults.
const (
	minMisses, maxMisses       = 128, 16384
	clientMisses               = 512      // of one client, if that is at most a quarter of all
	minConns, maxConns         = 32, 1024 // of clients; the maximum is that of an address
	maxPoolSockets             = 512
	maxPoolConns               = 64
	minQueue, maxQueue         = 256 << 10, 8 << 20 // bytes of a UDP receive queue
	maxUnread                  = 64 << 20           // bytes of replies that TCP clients do not read
	maxTaps                    = 4 << 20            // bytes of messages that wait for dnstap readers
	minBudget, maxBudget       = 2 << 20, 512 << 20
	unknownBudget              = 64 << 20 // without a memory limit
	minHeap              int64 = 12 << 20 // with less, the garbage collector runs all the time
)

// File descriptors of a process without clients and upstreams.
const (
	reservedFiles = 40 // log, event loops, netlink, timers, admin endpoints and their requests
	// redirectFiles: 33 for maps, programs and links; 11 timers, watches and netlink
	// sockets; 20 for checks from pods and of fallbacks, which last a second.
	redirectFiles = 64
	fastpathFiles = 16 + fastpath.MaxInterfaces // 11 maps and programs, netlink; one link each
)

// resources are what limits divides.
type resources struct {
	memory    int64 // bytes; 0: no limit
	files     int   // RLIMIT_NOFILE
	reserved  int   // of files, without listeners
	workers   int   // UDP sockets of an address
	addresses int   // on which the server listens
	pools     int
}

// resources returns those of this process for a Corefile.
func (o *Options) resources(cfg *config.Config) resources {
	r := resources{workers: runtime.GOMAXPROCS(0), files: math.MaxInt32, reserved: reservedFiles}
	if limit, _, limited := memoryLimit(o.Root); limited {
		r.memory = limit
	}
	var n unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &n) == nil {
		r.files = int(min(n.Cur, math.MaxInt32))
	}
	for _, b := range cfg.Blocks {
		r.pools += len(b.Forwards)
	}
	r.addresses = max(len(o.addresses(cfg)), 1)
	if cfg.Redirect().Mode != config.RedirectOff {
		r.addresses += len(o.LocalIPs) // the targets
		r.reserved += redirectFiles + len(o.LocalIPs)*server.ProberFiles(r.workers)
	}
	if cfg.Fastpath().Mode != config.FastpathOff {
		r.reserved += fastpathFiles
	}
	r.pools = max(r.pools, 1)
	return r
}

// addresses returns those on which the server listens for cfg, in order.
func (o *Options) addresses(cfg *config.Config) []netip.AddrPort {
	var addrs []netip.AddrPort
	for _, b := range cfg.Blocks {
		found, _ := bindAddrs(b) // an error is reported when the block is built
		for _, z := range b.Zones {
			for _, a := range found {
				addrs = append(addrs, netip.AddrPortFrom(a, o.portOf(z)))
			}
		}
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs)
}

// limits are the limits of a process. Together they fit its resources.
type limits struct {
	memory                  int64 // bytes; 0: no limit
	cache                   int64 // bytes
	heap                    int64 // bytes, for GOMEMLIMIT with a full cache; 0: no limit
	workers                 int   // UDP sockets of an address
	queue                   int64 // bytes of the receive queue of each
	unread                  int64 // bytes of replies that TCP clients do not read
	taps                    int64 // bytes of messages that wait for dnstap readers, a part of unread
	misses, missesPerClient int
	conns, connsPerClient   int // TCP connections of clients on an address
	upstreamSockets         int // UDP, of all pools
	upstreamConns           int // TCP, of all pools
	clamped                 []clamped
}

// clamped is a flag whose value does not fit.
type clamped struct {
	flag        string // without the dash
	given, used int64
	err         error // contains the calculation
}

// limits computes the limits: the values of flags, and shares of the rest. A value
// that does not fit is lowered to what fits.
func (o *Options) limits(r resources) limits {
	l := limits{memory: r.memory, cache: defaultCache(r.memory)}
	l.setBuffers(r)
	left := int64(math.MaxInt64 / 2)
	if r.memory > 0 {
		const reserved = minMisses*missPrice + minConns*connPrice
		if most := max(r.memory-fixed(r.memory)-reserved, minBudget); o.CacheSize > most {
			l.clamp("cache-size", o.CacheSize, most, "does not fit; the memory limit %s leaves %s after %s for the process and its buffers and %s for misses and TCP connections",
				mib(r.memory), mib(r.memory-fixed(r.memory)-reserved), mib(fixed(r.memory)), mib(reserved))
		}
	}
	l.cache = l.explicit("cache-size", o.CacheSize, l.cache)
	if r.memory > 0 {
		left = max(r.memory-fixed(r.memory)-l.cache, 0)
	}
	left -= l.setMisses(o.Limits, left) * missPrice
	l.setConns(o.Limits, r, left)
	if r.memory > 0 {
		l.heap = l.heapLimit(r)
	}
	return l
}

// fixed is the memory of the process and its buffers: a sixteenth of the limit for
// the receive queues of UDP, and half of that for replies that TCP clients do not
// read.
func fixed(memory int64) int64 { return processPrice + memory/32*3 }

// setBuffers divides the memory of the buffers.
func (l *limits) setBuffers(r resources) {
	l.workers, l.queue, l.unread, l.taps = r.workers, maxQueue, maxUnread, maxTaps
	if r.memory > 0 {
		queues, addresses := r.memory/16, int64(r.addresses)
		l.workers = int(min(int64(r.workers), max(queues/addresses/minQueue, 1)))
		l.queue = min(queues/addresses/int64(l.workers), maxQueue)
		l.unread = min(r.memory/32, maxUnread)
		l.taps = min(r.memory/64, maxTaps)
	}
}

// defaultCache is half of the memory limit, and at most seven tenths of the limit
// minus the fixed memory.
func defaultCache(memory int64) int64 {
	if memory == 0 {
		return unknownBudget
	}
	return min(max(min(memory/2, (memory-fixed(memory))/10*7), minBudget), maxBudget)
}

// setMisses sets the limits of misses, by default two thirds of the memory that is
// left, and returns their number.
func (l *limits) setMisses(o LimitOptions, left int64) int64 {
	most := max((left-minConns*connPrice)/missPrice, minMisses)
	if n := int64(o.Misses); n > most {
		l.clamp("max-misses", n, most, "needs %s (%d KiB each); the memory limit %s leaves %s after the cache's %s, %s for the process and its buffers and %s for TCP connections",
			mib(n*missPrice), missPrice>>10, mib(l.memory), mib(left-minConns*connPrice), mib(l.cache), mib(fixed(l.memory)), mib(minConns*connPrice))
	}
	n := l.explicit("max-misses", int64(o.Misses), min(max(min(left/3*2, left-minConns*connPrice)/missPrice, minMisses), maxMisses))
	l.misses = int(n)
	if each := int64(o.MissesPerClient); each > n {
		l.clamp("max-misses-per-client", each, n, "is more than the limit for all clients, which is %d", n)
	}
	l.missesPerClient = int(l.explicit("max-misses-per-client", int64(o.MissesPerClient), min(max(n/8, clientMisses), max(n/4, 1))))
	return n
}

// setConns divides memory, in bytes, and the file descriptors. The upstreams get a
// quarter of the memory and half of the descriptors.
func (l *limits) setConns(o LimitOptions, r resources, memory int64) {
	files := int64(max(r.files-r.reserved-r.addresses*(l.workers+1), 4*r.pools))
	memory = max(memory, minConns*connPrice)
	addresses, pools := int64(r.addresses), int64(r.pools)
	l.upstreamConns = int(max(min(memory/4/streamPrice, files/16, maxPoolConns*pools), pools))
	memory -= int64(l.upstreamConns) * streamPrice
	l.upstreamSockets = int(max(min(files/2-int64(l.upstreamConns), maxPoolSockets*pools, int64(l.misses)/missesPerSocket), pools))
	if n := int64(o.TCP) * addresses; n > 0 {
		l.checkConns(int64(o.TCP), n, memory, files, r)
	}
	each := min(memory/connPrice, files/2, maxConns*addresses) / addresses
	l.conns = int(l.explicit("max-tcp-connections", int64(o.TCP), max(each, 1)))
	if n := o.TCPPerClient; n > l.conns {
		l.clamp("max-tcp-connections-per-client", int64(n), int64(l.conns), "is more than the limit for all clients, which is %d", l.conns)
	}
	l.connsPerClient = int(l.explicit("max-tcp-connections-per-client", int64(o.TCPPerClient), max(int64(l.conns)/2, 1)))
}

// checkConns clamps -max-tcp-connections, a limit per address that allows n
// connections in total, to memory in bytes and files in descriptors.
func (l *limits) checkConns(given, n, memory, files int64, r resources) {
	addresses, upstreams := int64(r.addresses), int64(l.upstreamConns+l.upstreamSockets)
	most := max(min(memory/connPrice, files-upstreams)/addresses, 1)
	switch {
	case given <= most:
	case n*connPrice > memory:
		l.clamp("max-tcp-connections", given, most,
			"needs %s (%d KiB each%s); the memory limit %s leaves %s after the cache's %s, %s for the process and its buffers, %s for misses and %s for TCP connections to upstreams",
			mib(n*connPrice), connPrice>>10, onAddresses(addresses), mib(l.memory), mib(memory), mib(l.cache), mib(fixed(l.memory)),
			mib(int64(l.misses)*missPrice), mib(int64(l.upstreamConns)*streamPrice))
	default:
		l.clamp("max-tcp-connections", given, most,
			"needs %d file descriptors (one each%s); the limit of open files %d leaves %d after %d for upstreams and %d for the process",
			n, onAddresses(addresses), r.files, files-upstreams, upstreams, int64(r.files)-files)
	}
}

// heapLimit is the garbage collector's limit (GOMEMLIMIT): what is left without the
// program, the memory of the kernel, and the cached answers, which are not on the
// heap. The index of the cache is on the heap. It takes up to an eighth of the
// cache's budget.
func (l *limits) heapLimit(r resources) int64 {
	kernel := int64(l.upstreamSockets*socketKernel+l.upstreamConns*streamKernel+l.conns*r.addresses*connKernel) + r.memory/16
	return max(r.memory-l.cache/8*7-programBytes-kernel, minHeap)
}

func (l *limits) clamp(flag string, given, used int64, format string, args ...any) {
	value := fmt.Sprint(given)
	if flag == "cache-size" {
		value = mib(given)
	}
	l.clamped = append(l.clamped, clamped{flag, given, used, fmt.Errorf("-%s %s "+format, append([]any{flag, value}, args...)...)})
}

// explicit returns the value of a flag, lowered if it does not fit. If the flag is
// not given, it returns otherwise.
func (l *limits) explicit(flag string, given, otherwise int64) int64 {
	for _, c := range l.clamped {
		if c.flag == flag {
			return c.used
		}
	}
	if given > 0 {
		return given
	}
	return otherwise
}

// onAddresses says that a limit applies to each of n addresses.
func onAddresses(n int64) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", on %d addresses", n)
}

// mib prints bytes in MiB, rounded down.
func mib(bytes int64) string { return fmt.Sprintf("%d MiB", max(bytes, 0)>>20) }

// CheckLimits returns an error for each limit that a daemon with these options would
// lower because it does not fit the memory limit or the limit of open files.
func (o *Options) CheckLimits(cfg *config.Config) error {
	var errs []error
	for _, c := range o.limits(o.resources(cfg)).clamped {
		errs = append(errs, c.err)
	}
	return errors.Join(errs...)
}

// report logs the limits that were lowered, and exports all.
func (l *limits) report(b base) {
	for _, c := range l.clamped {
		b.log.Warn("a limit is lowered, because its value does not fit", "limit", c.flag, "used", c.used, "error", c.err)
	}
	b.registry.MustRegister(l)
}

var (
	limitDesc = prometheus.NewDesc("nodens_limit", "Limits in effect: misses and TCP connections of clients, in all and of one client (connections: on one address); UDP sockets and TCP connections to upstreams.",
		[]string{"resource"}, nil)
	limitBytesDesc   = prometheus.NewDesc("nodens_limit_bytes", "Memory limits in effect, in bytes: of the cgroup, of the Go heap (GOMEMLIMIT) and of the cache.", []string{"resource"}, nil)
	limitClampedDesc = prometheus.NewDesc("nodens_limit_clamped", "1 if the value of the flag does not fit the memory limit or the limit of open files, and a lower one is in effect.", []string{"limit"}, nil)
)

// Describe implements prometheus.Collector.
func (*limits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitDesc, limitBytesDesc, limitClampedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *limits) Collect(ch chan<- prometheus.Metric) {
	for resource, n := range map[string]int{
		"misses": l.misses, "misses_per_client": l.missesPerClient,
		"tcp_connections": l.conns, "tcp_connections_per_client": l.connsPerClient,
		"upstream_sockets": l.upstreamSockets, "upstream_tcp_connections": l.upstreamConns,
	} {
		ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(n), resource)
	}
	heap := int64(0)
	if l.heap > 0 {
		heap = debug.SetMemoryLimit(-1) // changes, see memoryGuard
	}
	for resource, n := range map[string]int64{"memory": l.memory, "heap": heap, "cache": l.cache} {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(limitBytesDesc, prometheus.GaugeValue, float64(n), resource)
		}
	}
	for _, flag := range []string{"cache-size", "max-misses", "max-misses-per-client", "max-tcp-connections", "max-tcp-connections-per-client"} {
		lowered := slices.ContainsFunc(l.clamped, func(c clamped) bool { return c.flag == flag })
		ch <- prometheus.MustNewConstMetric(limitClampedDesc, prometheus.GaugeValue, boolGauge(lowered), strings.ReplaceAll(flag, "-", "_"))
	}
}
