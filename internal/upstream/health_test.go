package upstream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// pipes is a Dialer whose servers run in a synctest bubble. Servers that are not
// up refuse connections.
type pipes struct {
	mu    sync.Mutex
	up    map[string]bool
	dials []string // address, for each call
	open  atomic.Int64
}

func (d *pipes) set(addr string, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.up == nil {
		d.up = make(map[string]bool)
	}
	d.up[addr] = up
}

func (d *pipes) count() int { return len(d.since(0)) }

// since returns the addresses dialled after the first n.
func (d *pipes) since(n int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.dials[n:]...)
}

func (d *pipes) DialContext(_ context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials = append(d.dials, addr)
	if !d.up[addr] {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	d.open.Add(1)
	go func() {
		defer d.open.Add(-1)
		defer theirs.Close()
		f := &fake{}
		if network == "tcp" {
			f.serve(theirs, func(q seen) []byte { return answer(q.msg) })
			return
		}
		buf := make([]byte, 512)
		for {
			n, err := theirs.Read(buf)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			_ = m.Unpack(buf[:n])
			_, _ = theirs.Write(answer(m))
		}
	}()
	return ours, nil
}

const addrA, addrB = "192.0.2.1:53", "192.0.2.2:53"

func bubblePool(t *testing.T, d *pipes, change func(*PoolConfig), addrs ...string) (*Pool, func(string, float64, ...string), func()) {
	var endpoints []Endpoint
	for _, a := range addrs {
		endpoints = append(endpoints, Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	p, reg := newTestPool(t, func(c *PoolConfig) {
		c.Dialer = d
		if change != nil {
			change(c)
		}
	}, endpoints...)
	want := func(name string, v float64, labels ...string) { t.Helper(); wantSeries(t, reg, v, name, labels...) }
	return p, want, start(t, p)
}

func TestProbesReviveAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		d.set(addrB, true)
		p, want, stop := bubblePool(t, d, nil, addrA, addrB)
		time.Sleep(time.Hour)
		if d.count() != 0 {
			t.Fatal("probes although nothing failed")
		}
		mustAnswer(t, p, "example.org.") // A fails, B answers; the first probe of A fails
		synctest.Wait()
		want("nodens_upstream_healthy", 0, "to", addrA)
		want("nodens_upstream_healthy", 1, "to", addrB)
		want("coredns_forward_healthcheck_failures_total", 1, "to", addrA)
		before := d.count()
		mustAnswer(t, p, "example.org.")
		if got := d.since(before); len(got) != 1 || got[0] != addrB {
			t.Errorf("dialled %v: A is down", got)
		}
		time.Sleep(4*defaultProbeInterval + time.Millisecond)
		want("coredns_forward_healthcheck_failures_total", 5, "to", addrA)
		d.set(addrA, true)
		time.Sleep(defaultProbeInterval)
		want("nodens_upstream_healthy", 1, "to", addrA)
		before = d.count()
		time.Sleep(time.Hour)
		if d.count() != before {
			t.Error("probes continue after a success")
		}
		mustAnswer(t, p, "example.org.")
		if got := d.since(before); len(got) != 1 || got[0] != addrA {
			t.Errorf("dialled %v: A is back", got)
		}
		// A second outage is detected like the first.
		d.set(addrA, false)
		mustAnswer(t, p, "example.org.")
		synctest.Wait()
		want("nodens_upstream_healthy", 0, "to", addrA)
		stop()
	})
}

func TestAnswerEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		p, want, stop := bubblePool(t, d, nil, addrA)
		if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
			t.Fatal("no error")
		}
		synctest.Wait()
		want("nodens_upstream_healthy", 0, "to", addrA)
		d.set(addrA, true)
		mustAnswer(t, p, "example.org.") // all are down, and are queried anyway
		want("coredns_forward_healthcheck_broken_total", 1)
		want("nodens_upstream_healthy", 1, "to", addrA)
		before := d.count()
		time.Sleep(time.Hour)
		if d.count() != before {
			t.Error("probes continue")
		}
		stop()
	})
}

func TestMaxFailsZeroNeverProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		p, want, stop := bubblePool(t, d, func(c *PoolConfig) { c.MaxFails = 0 }, addrA)
		for range 5 {
			if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
				t.Fatal("no error")
			}
		}
		before := d.count()
		time.Sleep(time.Hour)
		if d.count() != before {
			t.Error("probes with max_fails 0")
		}
		want("nodens_upstream_healthy", 1, "to", addrA)
		want("coredns_forward_healthcheck_broken_total", 0)
		stop()
	})
}

func TestRemovedServerIsNotProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		d.set(addrB, true)
		p, want, stop := bubblePool(t, d, nil, addrA, addrB)
		mustAnswer(t, p, "example.org.")
		synctest.Wait()
		kept := (*p.servers.Load())[1]
		p.SetEndpoints([]Endpoint{{Addr: netip.MustParseAddrPort(addrB)}})
		if (*p.servers.Load())[0] != kept {
			t.Error("B lost its state")
		}
		before := d.count()
		time.Sleep(time.Hour)
		if d.count() != before {
			t.Error("A is probed")
		}
		want("coredns_forward_requests_total", 0, "to", addrA)
		want("coredns_forward_requests_total", 1, "to", addrB)
		p.SetEndpoints([]Endpoint{{Addr: netip.MustParseAddrPort(addrA)}})
		want("nodens_upstream_healthy", 1, "to", addrA)
		stop()
	})
}

func TestIdleConnectionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		d.set(addrA, true)
		p, want, stop := bubblePool(t, d, func(c *PoolConfig) { c.ForceTCP, c.Expire = true, 10*time.Second }, addrA)
		mustAnswer(t, p, "example.org.")
		time.Sleep(9 * time.Second)
		mustAnswer(t, p, "example.org.")
		want("coredns_proxy_conn_cache_hits_total", 1)
		time.Sleep(9 * time.Second)
		if n := d.open.Load(); n != 1 {
			t.Errorf("%d connections after 9 s, want 1", n)
		}
		time.Sleep(1100 * time.Millisecond)
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d connections after 10 s, want 0", n)
		}
		mustAnswer(t, p, "example.org.")
		stop()
		synctest.Wait()
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d connections after Run", n)
		}
		mustAnswer(t, p, "example.org.") // still answers, but keeps no connection
		synctest.Wait()
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d connections after the last exchange", n)
		}
	})
}

func TestProbeMessage(t *testing.T) {
	for _, rd := range []bool{true, false} {
		got := make(chan seen, 100)
		f := newFake(t, func(f *fake) {
			f.onUDP = func(q seen, send func([]byte)) {
				if q.msg.Question[0].Qtype == dns.TypeNS {
					got <- q
					send(reply(q.msg, withRcode(dns.RcodeRefused))) // a sign of life
				}
			}
		})
		p, reg := newTestPool(t, func(c *PoolConfig) {
			c.MaxFails = 1
			c.HealthCheck = HealthCheck{Interval: time.Millisecond, RecursionDesired: rd, Domain: "health.example."}
		}, f.endpoint())
		stop := start(t, p)
		p.failed((*p.servers.Load())[0], errors.New("broken"), time.Now())
		q := <-got
		if q.msg.Question[0].Name != "health.example." || q.msg.RecursionDesired != rd || len(q.msg.Extra) != 0 {
			t.Errorf("probe:\n%v", q.msg)
		}
		stop()
		wantSeries(t, reg, 0, "nodens_upstream_healthy") // removed with the pool
	}
}

func TestServerDiesAndReturns(t *testing.T) {
	for name, change := range map[string]func(*PoolConfig){"udp": nil, "tcp": forceTCP} {
		t.Run(name, func(t *testing.T) {
			back := make(chan bool, 1)
			f := newFake(t, nil)
			p, reg := newTestPool(t, func(c *PoolConfig) {
				c.MaxFails, c.HealthCheck.Interval = 1, time.Millisecond
				c.Recovered = func() { back <- true }
				if change != nil {
					change(c)
				}
			}, f.endpoint())
			start(t, p)
			for range 3 {
				mustAnswer(t, p, "example.org.")
				f.close()
				if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
					t.Fatal("a dead server answers")
				}
				wantSeries(t, reg, 0, "nodens_upstream_healthy")
				f.listen()
				<-back
				wantSeries(t, reg, 1, "nodens_upstream_healthy")
			}
			mustAnswer(t, p, "example.org.")
		})
	}
}

type writerFunc func([]byte)

func (w writerFunc) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestSetEndpointsUnderLoad(t *testing.T) {
	a, b, c := newFake(t, nil), newFake(t, nil), newFake(t, nil)
	p, reg := newTestPool(t, func(c *PoolConfig) { c.Policy = PolicyRandom; c.ForceTCP = true }, a.endpoint())
	stop := start(t, p)
	var load sync.WaitGroup
	for range 8 {
		load.Go(func() {
			for range 100 {
				if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sets := [][]Endpoint{{b.endpoint()}, {a.endpoint(), b.endpoint(), a.endpoint()}, {c.endpoint(), a.endpoint()}}
	for i := range 200 {
		p.SetEndpoints(sets[i%len(sets)])
	}
	load.Wait()
	p.SetEndpoints([]Endpoint{c.endpoint()})
	mustAnswer(t, p, "example.org.")
	if _, found := series(t, reg, "coredns_forward_requests_total", "to", a.addr.String()); found {
		t.Error("series of a removed endpoint are left")
	}
	stop()
	if _, found := series(t, reg, "coredns_forward_requests_total"); found {
		t.Error("series are left after Run")
	}
	for _, f := range []string{"upstream.(*Pool)", "upstream.(*attempt)", "upstream.(*port)", "upstream.(*stream)"} {
		wantGone(t, f)
	}
}

// wantGone waits until no goroutine runs a function whose name begins with f.
// Readers end soon after their sockets are closed.
func wantGone(t *testing.T, f string) {
	t.Helper()
	var stacks strings.Builder
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stacks.Reset()
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		if !strings.Contains(stacks.String(), f) {
			return
		}
	}
	t.Errorf("%s still runs after Run:\n%s", f, stacks.String())
}

func TestPoolsShareMetrics(t *testing.T) {
	f := newFake(t, nil)
	first, reg := newTestPool(t, nil, f.endpoint())
	second, err := NewPool(PoolConfig{Endpoints: []Endpoint{f.endpoint()}, Metrics: first.cfg.Metrics})
	if err != nil {
		t.Fatal(err)
	}
	mustAnswer(t, first, "example.org.")
	mustAnswer(t, second, "example.org.")
	start(t, first)()
	for _, name := range []string{"coredns_forward_requests_total", "coredns_forward_request_duration_seconds",
		"coredns_proxy_request_duration_seconds", "coredns_forward_responses_total"} {
		wantSeries(t, reg, 2, name, "to", f.addr.String())
	}
	start(t, second)()
	if _, found := series(t, reg, "coredns_forward_requests_total"); found {
		t.Error("series are left after the last pool")
	}
}

func TestRetiredServerKeepsNothing(t *testing.T) {
	f := newFake(t, nil)
	p, reg := newTestPool(t, forceTCP, f.endpoint())
	s := (*p.servers.Load())[0]
	p.SetEndpoints(nil)
	p.failed(s, errors.New("broken"), time.Now())
	if len(p.takeSuspects()) != 0 {
		t.Error("a removed server would be probed")
	}
	start(t, p)()
	p.SetEndpoints([]Endpoint{f.endpoint()})
	mustAnswer(t, p, "example.org.")
	if n := (*p.servers.Load())[0].conns.idleNow(); n != 0 {
		t.Errorf("%d connections kept after Run", n)
	}
	if _, found := series(t, reg, "coredns_forward_requests_total"); found {
		t.Error("series after Run")
	}
}

func TestRemovedDeadServerIsNotCounted(t *testing.T) {
	f := newFake(t, nil)
	first, reg := newTestPool(t, func(c *PoolConfig) { c.MaxFails = 1 }, f.endpoint())
	second, err := NewPool(PoolConfig{Endpoints: []Endpoint{f.endpoint()}, Metrics: first.cfg.Metrics})
	if err != nil {
		t.Fatal(err)
	}
	first.failed((*first.servers.Load())[0], errors.New("broken"), time.Now())
	wantSeries(t, reg, 0, "nodens_upstream_healthy", "to", f.addr.String())
	first.SetEndpoints(nil)
	wantSeries(t, reg, 1, "nodens_upstream_healthy", "to", f.addr.String())
	start(t, second)()
}
