package daemon

import (
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// machine is a process with a memory limit in MiB and a limit of open files, with two
// addresses and four pools.
func machine(memory int64, files int) resources {
	return resources{memory: memory << 20, files: files, reserved: reservedFiles, workers: 2, addresses: 2, pools: 4}
}

// TestDefaultLimits has the defaults of docs/cache.md.
func TestDefaultLimits(t *testing.T) {
	for _, c := range []struct {
		resources
		cache, heap                         int64 // MiB
		misses, conns, sockets, upstreamTCP int
	}{
		{machine(16, 1<<20), 2, 12, 128, 12, 32, 16},
		{machine(32, 1<<20), 3, 12, 128, 12, 32, 16},
		{machine(64, 1<<20), 23, 20, 1740, 20, 435, 27},
		{machine(128, 1<<20), 64, 39, 4778, 56, 1194, 74},
		{machine(256, 1<<20), 128, 91, 13653, 160, 2048, 213},
		{machine(1024, 1<<20), 512, 400, 16384, 1024, 2048, 256},
		{machine(0, 1<<20), 64, 0, 16384, 1024, 2048, 256},
		{machine(0, 1024), 64, 0, 16384, 244, 428, 61},
		{machine(0, 96), 64, 0, 16384, 12, 21, 4},
		{machine(0, 10), 64, 0, 16384, 4, 4, 4},
	} {
		l := new(Options).limits(c.resources)
		if l.cache>>20 != c.cache || l.heap>>20 != c.heap || l.misses != c.misses || l.conns != c.conns ||
			l.upstreamSockets != c.sockets || l.upstreamConns != c.upstreamTCP || len(l.clamped) > 0 {
			t.Errorf("%+v: %+v, want %+v", c.resources, l, c)
		}
		if want := min(max(l.misses/8, clientMisses), l.misses/4); l.missesPerClient != want || l.connsPerClient != l.conns/2 {
			t.Errorf("%+v: %d misses and %d connections of a client", c.resources, l.missesPerClient, l.connsPerClient)
		}
	}
}

// fits reports whether the parts of l fit r.
func fits(t *testing.T, r resources, l limits) {
	t.Helper()
	conns, streams := int64(l.conns*r.addresses), int64(l.upstreamConns)
	if sum := l.cache + fixed(r.memory) + int64(l.misses)*missPrice + conns*connPrice + streams*streamPrice; r.memory >= 40<<20 && sum > r.memory {
		t.Errorf("%+v: %+v needs %s", r, l, mib(sum))
	}
	if buffers := int64(l.workers*r.addresses)*l.queue + l.unread; r.memory > 0 && buffers > fixed(r.memory)-processPrice {
		t.Errorf("%+v: %s for buffers", r, mib(buffers))
	}
	// What the heap holds: the answers' index, the process without load, misses
	// and their sockets, connections, and replies that clients do not read.
	const idle, miss, socket = 5 << 20, 2250, 3 << 10
	live := l.cache/8 + idle + int64(l.misses*miss+l.upstreamSockets*socket) + conns*(connPrice-connKernel) + streams*(streamPrice-streamKernel) + l.unread
	if r.memory >= 48<<20 && (live > l.heap || len(l.clamped) == 0 && l.cache == defaultCache(r.memory) && live > l.heap/10*9) {
		t.Errorf("%+v: a heap of %s for %s", r, mib(l.heap), mib(live))
	}
	if files := r.reserved + r.addresses*(l.workers+1+l.conns) + l.upstreamSockets + l.upstreamConns; r.files >= 96 && files > r.files {
		t.Errorf("%+v: %+v needs %d descriptors", r, l, files)
	}
	if l.misses < minMisses || min(l.missesPerClient, l.conns, l.connsPerClient) < 1 || min(l.upstreamSockets, l.upstreamConns) < r.pools {
		t.Errorf("%+v: %+v", r, l)
	}
}

func TestLimitsFit(t *testing.T) {
	for _, memory := range []int64{0, 8, 16, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024, 1 << 16} {
		for _, files := range []int{10, 96, 128, 1024, 4096, 1 << 20, math.MaxInt32} {
			for _, o := range []Options{
				{}, {CacheSize: 1 << 40}, {CacheSize: 1 << 20}, {Limits: LimitOptions{Misses: 1 << 20}},
				{Limits: LimitOptions{TCP: 1 << 20}}, {CacheSize: 1 << 40, Limits: LimitOptions{Misses: 1 << 20, TCP: 1 << 20, MissesPerClient: 1 << 20, TCPPerClient: 1 << 20}},
			} {
				if r := machine(memory, files); memory > 0 || o.CacheSize == 0 && o.Limits.Misses == 0 {
					fits(t, r, o.limits(r))
				}
			}
		}
	}
}

func TestLimitsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		resources
		Options
		used int64
		want string
	}{
		{machine(128, 1<<20), Options{Limits: LimitOptions{Misses: 100000}}, 6656,
			"-max-misses 100000 needs 390 MiB (4 KiB each); the memory limit 128 MiB leaves 26 MiB after the cache's 64 MiB, 36 MiB for the process and its buffers and 2 MiB for TCP connections"},
		{machine(128, 1<<20), Options{CacheSize: 120 << 20}, 179 << 19,
			"-cache-size 120 MiB does not fit; the memory limit 128 MiB leaves 89 MiB after 36 MiB for the process and its buffers and 2 MiB for misses and TCP connections"},
		{machine(128, 1<<20), Options{Limits: LimitOptions{TCP: 1000}}, 56,
			"-max-tcp-connections 1000 needs 125 MiB (64 KiB each, on 2 addresses); the memory limit 128 MiB leaves 7 MiB after the cache's 64 MiB, 36 MiB for the process and its buffers, 18 MiB for misses and 2 MiB for TCP connections to upstreams"},
		{machine(0, 1024), Options{Limits: LimitOptions{TCP: 1000}}, 244,
			"-max-tcp-connections 1000 needs 2000 file descriptors (one each, on 2 addresses); the limit of open files 1024 leaves 489 after 489 for upstreams and 46 for the process"},
		{machine(0, 1024), Options{Limits: LimitOptions{Misses: 100, MissesPerClient: 200}}, 100,
			"-max-misses-per-client 200 is more than the limit for all clients, which is 100"},
		{machine(0, 1<<20), Options{Limits: LimitOptions{TCP: 100, TCPPerClient: 200}}, 100,
			"-max-tcp-connections-per-client 200 is more than the limit for all clients, which is 100"},
	} {
		l := c.limits(c.resources)
		if len(l.clamped) != 1 || l.clamped[0].err.Error() != c.want || l.clamped[0].used != c.used {
			t.Errorf("got  %+v\nwant %s (%d)", l.clamped, c.want, c.used)
		}
	}
	for _, o := range []Options{
		{CacheSize: 89 << 20}, {Limits: LimitOptions{Misses: 6656}}, {Limits: LimitOptions{TCP: 56}},
		{CacheSize: 10 << 20, Limits: LimitOptions{Misses: 1000, TCP: 450, MissesPerClient: 1000, TCPPerClient: 450}},
	} {
		if l := o.limits(machine(128, 1<<20)); len(l.clamped) > 0 {
			t.Errorf("%+v: %v", o, l.clamped)
		}
	}
}

// TestResources counts addresses, pools and reserved files of a Corefile, and reads the
// memory limit.
func TestResources(t *testing.T) {
	const text = `. a.example:5300 {
bind 192.0.2.1 192.0.2.2
forward . 192.0.2.9
DIRECTIVE
}
b.example {
bind 192.0.2.1
forward . 192.0.2.9
}`
	o := Options{DNSPort: 53, LocalIPs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, Root: fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"proc/self/mountinfo":      {Data: []byte("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte("134217728\n")},
	}}
	for directive, more := range map[string]resources{
		"":            {},
		"redirect on": {reserved: redirectFiles + server.ProberFiles(runtime.GOMAXPROCS(0)), addresses: 1},
		"fastpath on": {reserved: fastpathFiles},
	} {
		cfg, err := config.Parse("Corefile", strings.ReplaceAll(text, "DIRECTIVE", directive), config.Source{})
		if err != nil {
			t.Fatal(err)
		}
		r := o.resources(cfg)
		if r.memory != 128<<20 || r.addresses != 4+more.addresses || r.reserved != reservedFiles+more.reserved || r.pools != 2 || r.files < 96 || r.workers < 1 {
			t.Errorf("%q: %+v", directive, r)
		}
	}
}
