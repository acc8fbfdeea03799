package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestMemoryOfExchangesInFlight has 16,384 exchanges wait for a silent upstream,
// after the first repeats. A file descriptor counts as 3 KiB of kernel memory.
func TestMemoryOfExchangesInFlight(t *testing.T) {
	for name, tcp := range map[string]bool{"udp": false, "tcp": true} {
		t.Run(name, func(t *testing.T) {
			const n, bound, perFD = 16384, 4096, 3072
			silent := newSilent(t)
			p, reg := newTestPool(t, func(c *PoolConfig) {
				c.MaxFails, c.NoHedge, c.ForceTCP = 0, false, tcp
				c.AttemptTimeout = 0
			}, Endpoint{Addr: silent})
			before, routines, fds := inUse(), runtime.NumGoroutine(), openFiles(t)
			cancels := make([]func(), n)
			for i := range cancels {
				cancels[i] = p.Start(asking(fmt.Sprintf("n%d.example.org.", i), dns.TypeA), time.Time{}, func(*dns.Msg, error) {})
			}
			for end := time.Now().Add(long); ; time.Sleep(10 * time.Millisecond) {
				if sent, _ := series(t, reg, "coredns_forward_requests_total"); sent >= 2*n {
					break
				} else if time.Now().After(end) {
					t.Fatalf("%v queries sent", sent)
				}
			}
			fds = openFiles(t) - fds
			used := (inUse() - before + int64(fds)*perFD) / n
			routines = runtime.NumGoroutine() - routines
			t.Logf("%d bytes an exchange, %d file descriptors, %d goroutines", used, fds, routines)
			if used > bound || routines > 2*defaultSockets || fds > defaultSockets+2*defaultConns { // both ends of a connection
				t.Errorf("%d bytes an exchange, %d file descriptors, %d goroutines", used, fds, routines)
			}
			for _, cancel := range cancels {
				cancel()
			}
			if left := p.active.Load(); left != 0 || len(p.timers.heap) != 0 {
				t.Errorf("%d exchanges and %d timers left", left, len(p.timers.heap))
			}
		})
	}
}

// newSilent returns an address on which queries arrive and none is answered.
func newSilent(t *testing.T) netip.AddrPort {
	t.Helper()
	f := newFake(t, func(f *fake) {
		f.onUDP = nil
		f.onConn = func(_ int, c net.Conn) {
			buf := make([]byte, 4096)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
			}
		}
	})
	_ = f.pc.Close() // nothing reads, and nothing refuses
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(f.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return f.addr
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// TestPortsAreBounded: above the limit, queries share ports, and each gets its own
// answer.
func TestPortsAreBounded(t *testing.T) {
	const bound, n = 4, 200
	var mu sync.Mutex // of the fake's goroutine and the test's
	ports := make(map[netip.AddrPort]bool)
	var held []func()
	f := newFake(t, func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			mu.Lock()
			defer mu.Unlock()
			ports[q.from] = true
			held = append(held, func() { send(answer(q.msg)) })
			if len(held) == n {
				for i := range held { // the last first
					held[n-1-i]()
				}
			}
		}
	})
	p, _ := newTestPool(t, func(c *PoolConfig) { c.Limits.Sockets = bound }, f.endpoint())
	var wg sync.WaitGroup
	for i := range n {
		name := fmt.Sprintf("n%d.example.org.", i)
		wg.Add(1)
		p.Start(asking(name, dns.TypeA), time.Time{}, func(m *dns.Msg, err error) {
			defer wg.Done()
			if err != nil || m.Question[0].Name != name || m.Answer[0].Header().Name != name {
				t.Errorf("%s: %v, %v", name, m, err)
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(ports) != bound {
		t.Errorf("%d ports, want %d", len(ports), bound)
	}
}

// TestPortsAreSharedWithoutFileDescriptors: the second port cannot be opened.
func TestPortsAreSharedWithoutFileDescriptors(t *testing.T) {
	f := newFake(t, nil)
	opened := 0
	p, _ := newTestPool(t, func(c *PoolConfig) {
		c.Dialer = dialerFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			if opened++; opened > 1 {
				return nil, os.NewSyscallError("socket", syscall.EMFILE)
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		})
	}, f.endpoint())
	for range portUses / 2 {
		mustAnswer(t, p, "example.org.")
	}
	if opened < 2 {
		t.Error("no second port was requested")
	}
}

// TestRefusalFailsAllOnThePort: one ICMP error ends all queries that share it.
func TestRefusalFailsAllOnThePort(t *testing.T) {
	f := newFake(t, nil)
	f.close()
	p, _ := newTestPool(t, func(c *PoolConfig) { c.Limits.Sockets = 1 }, f.endpoint())
	for range 20 {
		var wg sync.WaitGroup
		for range 10 {
			wg.Add(1)
			p.Start(asking("example.org.", dns.TypeA), time.Time{}, func(_ *dns.Msg, err error) {
				defer wg.Done()
				if err == nil || !strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()) {
					t.Errorf("error %v", err)
				}
			})
		}
		wg.Wait()
	}
}

// TestConnectionsAreBounded: above the limit, queries share connections, even those
// that are still being dialled. Replies come in any order.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound, n = 3, 60
		var passed atomic.Int32
		d := &path{pass: func(*dns.Msg, bool) (time.Duration, bool) {
			return time.Duration(n-passed.Add(1)) * time.Millisecond, true
		}}
		p := pathPool(t, d, func(c *PoolConfig) { c.ForceTCP, c.Limits.Conns, c.NoHedge = true, bound, true })
		var wg sync.WaitGroup
		for i := range n {
			name := fmt.Sprintf("n%d.example.org.", i)
			wg.Add(1)
			p.Start(asking(name, dns.TypeA), time.Time{}, func(m *dns.Msg, err error) {
				defer wg.Done()
				if err != nil || m.Question[0].Name != name {
					t.Errorf("%s: %v, %v", name, m, err)
				}
			})
		}
		cs := &(*p.servers.Load())[0].conns
		cs.mu.Lock()
		if len(cs.all) != bound {
			t.Errorf("%d connections, want %d", len(cs.all), bound)
		}
		cs.mu.Unlock()
		wg.Wait()
	})
}

// TestDeadSharedConnectionIsReplaced: no connection brings replies any more, and the
// limit allows no new one. Later queries must not wait on these connections forever.
func TestDeadSharedConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := make(map[net.Conn]bool)
		kill := false
		d := &path{}
		d.pass = func(*dns.Msg, bool) (time.Duration, bool) { return 10 * time.Millisecond, true }
		p := pathPool(t, d, func(c *PoolConfig) { c.ForceTCP, c.Limits.Conns, c.MaxFails = true, 2, 0 })
		d.silence = func(c net.Conn) bool {
			if kill {
				dead[c] = true
			}
			return dead[c]
		}
		load(p, time.Second)
		d.mu.Lock()
		kill = true
		d.mu.Unlock()
		load(p, 100*time.Millisecond)
		d.mu.Lock()
		kill = false
		d.mu.Unlock()
		for _, o := range load(p, 15*time.Second) {
			if o.at > 5*time.Second && o.err != nil {
				t.Errorf("started at %v: %v after %v", o.at, o.err, o.took)
			}
		}
	})
}

func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts timers
		var fired []int
		all := make([]*timer, 1000)
		began := time.Now()
		for i := range all {
			all[i] = &timer{due: func() {
				if d := time.Since(began); d != time.Duration(i)*time.Millisecond {
					t.Errorf("timer %d after %v", i, d)
				}
				fired = append(fired, i)
			}}
		}
		for i := range all {
			k := i * 7919 % len(all)
			ts.set(all[k], began.Add(time.Duration(len(all)-k)*time.Millisecond))
			ts.set(all[k], began.Add(time.Duration(k)*time.Millisecond))
		}
		for i := 0; i < len(all); i += 2 {
			ts.set(all[i], time.Time{})
			ts.set(all[i], time.Time{})
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(fired) != len(all)/2 || len(ts.heap) != 0 {
			t.Errorf("%d timers were due, want %d; %d left", len(fired), len(all)/2, len(ts.heap))
		}
	})
}
