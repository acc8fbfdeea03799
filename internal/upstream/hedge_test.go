package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// scripted is a Dialer in a synctest bubble. Its servers answer the n-th query
// (from 0) after delay, or never if that is negative. It records when queries
// came and to which server.
type scripted struct {
	delay func(addr string, n int) time.Duration

	mu   sync.Mutex
	got  []string
	when []time.Time

	work sync.WaitGroup // of the servers; each ends with its connection
}

func (d *scripted) DialContext(_ context.Context, network, addr string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	d.work.Go(func() {
		defer theirs.Close()
		buf := make([]byte, 512)
		for {
			n, err := theirs.Read(buf)
			if err != nil {
				return
			}
			msg := buf[:n]
			if network == "tcp" {
				msg = msg[2:]
			}
			q := new(dns.Msg)
			if err := q.Unpack(msg); err != nil {
				panic(err)
			}
			d.mu.Lock()
			wait := d.delay(addr, len(d.got))
			d.got, d.when = append(d.got, addr), append(d.when, time.Now())
			d.mu.Unlock()
			if wait < 0 {
				continue
			}
			time.Sleep(wait)
			b := answer(q)
			if network == "tcp" {
				b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
			}
			if _, err := theirs.Write(b); err != nil {
				return
			}
		}
	})
	return ours, nil
}

// forget starts the script again at query 0.
func (d *scripted) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got, d.when = nil, nil
}

// asked returns the queried servers, and the time of each query after the first.
func (d *scripted) asked() (addrs []string, after []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.when {
		after = append(after, w.Sub(d.when[0]))
	}
	return append([]string(nil), d.got...), after
}

const never = -1

// hedgePool makes a pool with the default time limits. It has recorded that its
// servers answer after usual.
func hedgePool(t *testing.T, d *scripted, usual time.Duration, change func(*PoolConfig), addrs ...string) *Pool {
	var endpoints []Endpoint
	for _, a := range addrs {
		endpoints = append(endpoints, Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	p, _ := newTestPool(t, func(c *PoolConfig) {
		c.Dialer, c.Timeout, c.AttemptTimeout, c.Policy, c.NoHedge = d, 0, 0, PolicyRoundRobin, false
		if change != nil {
			change(c)
		}
	}, endpoints...)
	for _, s := range *p.servers.Load() {
		for range rttRecount {
			s.rtt.observe(usual)
		}
	}
	// No time passes in a bubble whose test has returned, so no goroutine may sleep
	// then.
	t.Cleanup(d.work.Wait)
	start(t, p)
	return p
}

// TestLostDatagramIsHedged: after a loss, the answer comes later by the usual reply
// time. Without hedging (the control), it comes after the repeat.
func TestLostDatagramIsHedged(t *testing.T) {
	const usual = 58 * time.Millisecond // just below the edge of a bucket
	for name, tt := range map[string]struct {
		budget       int64
		tcp, noHedge bool
		late         time.Duration // of the second query
	}{
		"hedged":            {hedgeCost, false, false, usual},
		"control":           {0, false, false, usual + repeatAfter},
		"hedged, TCP":       {hedgeCost, true, false, usual},
		"TCP, no hedge":     {0, true, false, usual + repeatAfter},
		"too little budget": {hedgeCost - 1, false, false, usual + repeatAfter},
		"no hedging":        {hedgeCost, false, true, defaultAttemptTimeout},
		"no hedging, TCP":   {hedgeCost, true, true, defaultAttemptTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &scripted{delay: func(_ string, n int) time.Duration {
					if n == 0 {
						return never
					}
					return time.Millisecond
				}}
				p := hedgePool(t, d, usual, func(c *PoolConfig) { c.ForceTCP, c.NoHedge = tt.tcp, tt.noHedge }, addrA)
				if tt.tcp { // over a connection that was alive until now
					d.delay = func(_ string, n int) time.Duration {
						if n == 1 {
							return never
						}
						return time.Millisecond
					}
					mustAnswer(t, p, "warm.example.")
				}
				p.hedges.thousandths.Store(tt.budget)
				began := time.Now()
				mustAnswer(t, p, "example.org.")
				if took := time.Since(began); took > tt.late+10*time.Millisecond || took < tt.late {
					t.Errorf("answered after %v, want about %v", took, tt.late)
				}
			})
		})
	}
}

func TestServerOfSecondQuery(t *testing.T) {
	for policy, want := range map[Policy]string{
		PolicyRoundRobin: addrB, // equals: another one
		PolicySequential: addrA, // B is used only when A is dead
	} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &scripted{delay: func(_ string, n int) time.Duration {
					if n == 0 {
						return never
					}
					return time.Millisecond
				}}
				p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.Policy = policy }, addrA, addrB)
				mustAnswer(t, p, "example.org.")
				got, _ := d.asked()
				if len(got) < 2 || got[0] != addrA || got[1] != want {
					t.Errorf("asked %v", got)
				}
			})
		})
	}
}

// TestFirstAnswerWins: nodens uses the answer of the slow server although it has
// sent a hedge.
func TestFirstAnswerWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(addr string, _ int) time.Duration {
			if addr == addrA {
				return 2 * hedgeSoonest
			}
			return never
		}}
		p := hedgePool(t, d, time.Millisecond, nil, addrA, addrB)
		began := time.Now()
		mustAnswer(t, p, "example.org.")
		if took := time.Since(began); took != 2*hedgeSoonest {
			t.Errorf("answered after %v", took)
		}
		synctest.Wait()
		if got, _ := d.asked(); len(got) < 2 || got[0] != addrA || got[1] != addrB {
			t.Errorf("asked %v", got)
		}
	})
}

// TestDeadUpstreamGetsNoDoubleLoad: without answers, the budget for hedges is used
// up and the pauses between queries grow.
func TestDeadUpstreamGetsNoDoubleLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(string, int) time.Duration { return never }}
		p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.MaxFails = 0 }, addrA)
		hedges := 0
		for i := range 40 {
			d.forget()
			if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
				t.Fatal("a silent server answers")
			}
			got, after := d.asked()
			if len(got) > triesOfOne {
				t.Fatalf("exchange %d: %d queries", i, len(got))
			}
			if len(after) > 1 && after[1] < repeatAfter {
				hedges++
			}
			if i == 39 && (len(after) > 2 || len(after) > 1 && after[1] < defaultAttemptTimeout) {
				t.Errorf("a dead server is queried again after %v", after)
			}
		}
		if hedges == 0 || hedges > hedgeSaved/hedgeCost {
			t.Errorf("%d hedges to a dead server", hedges)
		}
	})
}

// TestHedgesAreAShareOfAnswers: if every reply is late, one in ten is hedged.
func TestHedgesAreAShareOfAnswers(t *testing.T) {
	const n = 1000
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(string, int) time.Duration { return 3 * hedgeSoonest }}
		p := hedgePool(t, d, time.Millisecond, nil, addrA)
		s := (*p.servers.Load())[0]
		for range n {
			mustAnswer(t, p, "example.org.")
			s.rtt.p95.Store(int64(time.Millisecond)) // it never learns
		}
		got, _ := d.asked()
		if len(got) < n+n/20 || len(got) > n+n/8+hedgeSaved/hedgeCost {
			t.Errorf("%d queries for %d answers", len(got), n)
		}
	})
}

// TestSilentServerIsProbed: when a hedge to another server wins, the silent server
// is probed, and the failed probes mark it dead.
func TestSilentServerIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(addr string, _ int) time.Duration {
			if addr == addrA {
				return never
			}
			return time.Millisecond
		}}
		p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.MaxFails = 2 }, addrA, addrB)
		mustAnswer(t, p, "example.org.")
		time.Sleep(2*(probeTimeout+defaultProbeInterval) + time.Millisecond)
		synctest.Wait()
		if !(*p.servers.Load())[0].dead.Load() {
			t.Fatal("A is not marked dead")
		}
		for range 4 {
			began := time.Now()
			mustAnswer(t, p, "example.org.")
			if took := time.Since(began); took != time.Millisecond {
				t.Errorf("answered after %v: A was queried", took)
			}
		}
	})
}

// TestProbeClearsSuspect: a server that answers its first probe stays in use.
func TestProbeClearsSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(addr string, n int) time.Duration {
			if addr == addrA && n == 0 {
				return never
			}
			return time.Millisecond
		}}
		p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.MaxFails = 1 }, addrA, addrB)
		mustAnswer(t, p, "example.org.")
		time.Sleep(time.Second)
		synctest.Wait()
		if s := (*p.servers.Load())[0]; s.dead.Load() || s.failures() != 0 || s.probing {
			t.Errorf("A is down %v, %d failures, probing %v", s.dead.Load(), s.failures(), s.probing)
		}
	})
}

func TestLearntReplyTimes(t *testing.T) {
	var r rtt
	if r.p95.Load() != 0 {
		t.Error("a quantile of nothing")
	}
	for i := range 1000 {
		d := time.Millisecond
		if i%20 == 0 { // 1 in 20 is slow: at the edge of the 95th percentile
			d = 80 * time.Millisecond
		}
		r.observe(d)
	}
	if p := time.Duration(r.p95.Load()); p < time.Millisecond || p > 100*time.Millisecond {
		t.Errorf("p95 %v", p)
	}
	for range 2 * rttWindow {
		r.observe(200 * time.Millisecond)
	}
	if p := time.Duration(r.p95.Load()); p < 200*time.Millisecond || p > 250*time.Millisecond {
		t.Errorf("p95 %v after all replies have become slow", p)
	}
	for _, d := range []time.Duration{0, 1, time.Microsecond, 33 * time.Microsecond, time.Millisecond, time.Second, time.Hour} {
		r := new(rtt)
		r.observe(d)
		i := slices.Index(r.counts[:], 1)
		if i < 0 {
			t.Fatalf("%v in no bucket", d)
		}
		if i > 0 && i < rttBuckets-1 && (d < rttEdge(i) || d >= rttEdge(i+1)) {
			t.Errorf("%v in bucket %d, [%v, %v)", d, i, rttEdge(i), rttEdge(i+1))
		}
	}
}

// TestLossOverRealSockets has a server that drops the first query of each name.
func TestLossOverRealSockets(t *testing.T) {
	known := make(map[string]bool)
	f := newFake(t, func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			name := q.msg.Question[0].Name
			if known[name] {
				send(answer(q.msg))
			}
			known[name] = true
		}
	})
	p, reg := newTestPool(t, func(c *PoolConfig) { c.Timeout, c.AttemptTimeout, c.NoHedge = long, long, false }, f.endpoint())
	for _, name := range []string{"a.example.", "b.example.", "c.example."} {
		began := time.Now()
		mustAnswer(t, p, name)
		if took := time.Since(began); took > long/2 {
			t.Errorf("%s took %v: nothing followed the query that was lost", name, took)
		}
	}
	q := f.queries()
	if len(q) < 6 {
		t.Fatalf("%d queries for 3 names with the first of each lost", len(q))
	}
	for i := 1; i < len(q); i++ {
		if q[i].from == q[i-1].from && q[i].msg.Id == q[i-1].msg.Id {
			t.Error("a query was repeated with its port and ID")
		}
	}
	if n, _ := series(t, reg, "nodens_upstream_hedged_queries_total"); n < 3 {
		t.Errorf("%v hedges counted, want 3", n)
	}
}

// TestKeepalive: a query over TCP requests how long the server keeps the connection.
// The pool keeps it no longer than that (RFC 7828).
func TestKeepalive(t *testing.T) {
	says := func(units uint16) func(*dns.Msg) {
		return func(m *dns.Msg) {
			withA("192.0.2.1")(m)
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: units}}
		}
	}
	for name, tt := range map[string]struct {
		units  uint16
		later  time.Duration
		reused bool
	}{
		"within":     {30, 2 * time.Second, true},
		"beyond":     {30, 3 * time.Second, false},
		"our limit":  {6000, 10 * time.Second, false},
		"not at all": {0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.onConn = func(_ int, c net.Conn) {
					f.serve(c, func(q seen) []byte { return reply(q.msg, says(tt.units)) })
				}
			})
			now := time.Now()
			p, reg := newTestPool(t, func(c *PoolConfig) { forceTCP(c); c.Now = func() time.Time { return now } }, f.endpoint())
			mustAnswer(t, p, "example.org.")
			now = now.Add(tt.later)
			mustAnswer(t, p, "example.org.")
			hits, _ := series(t, reg, "coredns_proxy_conn_cache_hits_total", "proto", "tcp")
			if reused := hits == 1; reused != tt.reused {
				t.Errorf("reused %v, want %v", reused, tt.reused)
			}
			for _, q := range f.queries() {
				opt := q.msg.IsEdns0()
				if opt == nil || len(opt.Option) != 1 || opt.Option[0].Option() != dns.EDNS0TCPKEEPALIVE {
					t.Errorf("OPT record of a query over TCP: %v", opt)
				}
			}
		})
	}
}

// TestCancelledExchangesLeaveNothing: a cancelled exchange leaves no goroutine and
// no socket.
func TestCancelledExchangesLeaveNothing(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &scripted{delay: func(string, int) time.Duration { return never }}
			p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.ForceTCP = tcp }, addrA, addrB)
			for i := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*100)*time.Millisecond)
				_, err := p.Exchange(ctx, asking("example.org.", dns.TypeA))
				cancel()
				var e *Error
				if !errors.As(err, &e) {
					t.Errorf("error %v", err)
				}
			}
		}) // which waits for every goroutine of the bubble
	}
}
