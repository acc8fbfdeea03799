package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// TestMemoryOfMisses holds as many misses in flight as the default allows, on an
// upstream that does not reply. Each costs at most 2.5 KiB: heap, stacks, and 3 KiB
// in the kernel for each descriptor. docs/cache.md adds a part of a socket. Actions
// cost half a KiB more.
func TestMemoryOfMisses(t *testing.T) {
	t.Run("plain", func(t *testing.T) { memoryOfMisses(t, nil, 2560) })
	t.Run("actions", func(t *testing.T) {
		memoryOfMisses(t, &Actions{LoadBalance: new(action.LoadBalance)}, 3072)
	})
}

func memoryOfMisses(t *testing.T, a *Actions, bound int) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	pool, err := upstream.NewPool(upstream.PoolConfig{
		Endpoints: []upstream.Endpoint{{Addr: netip.MustParseAddrPort(silent.LocalAddr().String())}},
		Timeout:   time.Minute, AttemptTimeout: time.Minute, NoHedge: true, // until all are in flight
	})
	if err != nil {
		t.Fatal(err)
	}
	z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: pool}}, Actions: a}
	ts := newTestServer(t, Config{MaxMissesPerClient: defaultMaxMisses, Timeout: time.Minute}, z)
	c, err := net.Dial("udp", ts.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := costs(t)
	for i := range defaultMaxMisses {
		if _, err := c.Write(pack(t, query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))); err != nil {
			t.Fatal(err)
		}
		for late := time.Now().Add(20 * time.Second); i%64 == 63 && ts.inflight.waiters() <= i; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(late) {
				t.Fatalf("%d misses in flight", ts.inflight.waiters())
			}
		}
	}
	each := (costs(t) - before) / defaultMaxMisses
	t.Logf("%d bytes for each miss in flight, %d goroutines", each, runtime.NumGoroutine())
	if each > bound {
		t.Errorf("%d bytes for each miss in flight, want at most %d", each, bound)
	}
	if n := runtime.NumGoroutine(); n > 2000 {
		t.Errorf("%d goroutines", n)
	}
	ts.abort()
}

// TestMemoryOfWaiters: clients that wait for the same answer cost at most 512 bytes each,
// without goroutines.
func TestMemoryOfWaiters(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	z := zone(".", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		entered <- struct{}{}
		<-release
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	})
	ts := newTestServer(t, Config{MaxMissesPerClient: defaultMaxMisses, Timeout: time.Minute}, z)
	defer close(release)
	c, err := net.Dial("udp", ts.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := query("a-service.some-namespace.svc.cluster.local.", dns.TypeA, withEDNS(1232, false))
	join := func(n int) {
		for want := ts.inflight.waiters() + n; n > 0; n-- {
			m.Id = uint16(n)
			if _, err := c.Write(pack(t, m)); err != nil {
				t.Fatal(err)
			}
			if n%64 == 1 {
				waitFor(t, "waiters", func() bool { return ts.inflight.waiters() == want-n+1 })
			}
		}
	}
	join(1)
	<-entered
	runtime.GC() // twice: sync.Pool keeps the memory of earlier tests for one more
	before, goroutines := int(heap()), runtime.NumGoroutine()
	const further = 8192
	join(further)
	each := (int(heap()) - before) / further
	t.Logf("%d bytes for each further waiter", each)
	if each > 512 {
		t.Errorf("%d bytes for each further waiter, want at most 512", each)
	}
	if n := runtime.NumGoroutine() - goroutines; n > 10 {
		t.Errorf("%d more goroutines", n)
	}
}

// costs is the memory in use: heap, stacks, and an estimate for descriptors.
func costs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	heap := heap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(heap+m.StackInuse) + len(fds)*3<<10
}
