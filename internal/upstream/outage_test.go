package upstream

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"context"

	"github.com/miekg/dns"
)

// outagePool makes a pool with default time limits, whose server is silent while
// off is set.
func outagePool(t *testing.T, off *atomic.Bool, change func(*PoolConfig), addrs ...string) (*Pool, *scripted) {
	d := &scripted{delay: func(string, int) time.Duration {
		if off.Load() {
			return never
		}
		return time.Millisecond
	}}
	return hedgePool(t, d, time.Millisecond, func(c *PoolConfig) {
		c.MaxFails = 2
		if change != nil {
			change(c)
		}
	}, addrs...), d
}

// load starts an exchange every 50 ms for the given time. It returns the result of
// each exchange by its start time.
func load(p *Pool, d time.Duration) []ending {
	var mu sync.Mutex
	var got []ending
	var wg sync.WaitGroup
	began := time.Now()
	for i := 0; time.Since(began) < d; i++ {
		start := time.Now()
		wg.Add(1)
		var first sync.Once // a late answer may follow an error
		p.Start(asking(fmt.Sprintf("n%d.example.org.", i), dns.TypeA), time.Time{}, func(_ *dns.Msg, err error) {
			first.Do(func() {
				defer wg.Done()
				mu.Lock()
				defer mu.Unlock()
				got = append(got, ending{start.Sub(began), time.Since(start), err})
			})
		})
		time.Sleep(50 * time.Millisecond)
	}
	wg.Wait()
	return got
}

type ending struct {
	at, took time.Duration
	err      error
}

func TestOutageFailsFast(t *testing.T) {
	for name, tcp := range map[string]bool{"udp": false, "tcp": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var off atomic.Bool
				off.Store(true)
				p, d := outagePool(t, &off, func(c *PoolConfig) { c.ForceTCP = tcp }, addrA, addrB)
				refused, waited := 0, 0
				for _, o := range load(p, 20*time.Second) {
					down := errors.Is(o.err, ErrDown)
					switch {
					case o.err == nil:
						t.Fatal("a silent server answers")
					case o.took > 3901*time.Millisecond:
						t.Errorf("started at %v: took %v", o.at, o.took)
					case o.at > 15*time.Second && (!down || o.took > 50*time.Millisecond):
						t.Errorf("started at %v: %v after %v", o.at, o.err, o.took)
					case down && o.took < time.Millisecond:
						refused++
					case down:
						waited++
					}
				}
				if refused == 0 || waited == 0 {
					t.Errorf("%d refused at once, %d after a wait", refused, waited)
				}
				// Two probes and two trials a second, with up to four queries each.
				d.forget()
				load(p, 10*time.Second)
				if got, _ := d.asked(); len(got) < 20 || len(got) > 10*(4+2*maxTries)+20 {
					t.Errorf("%d queries in 10 s of an outage", len(got))
				}
				off.Store(false)
				for _, o := range load(p, 3*time.Second) {
					if o.at > time.Second && o.err != nil {
						t.Errorf("%v after the return: %v", o.at, o.err)
					}
				}
			})
		})
	}
}

// TestFailFastCostsNoAnswers compares the share of answers with and without
// fail-fast, for upstreams that are slow, restart or lose datagrams.
func TestFailFastCostsNoAnswers(t *testing.T) {
	restart := func(d time.Duration) func() func(*dns.Msg) (time.Duration, bool) {
		return func() func(*dns.Msg) (time.Duration, bool) {
			begin := time.Now().Add(5 * time.Second)
			return func(*dns.Msg) (time.Duration, bool) {
				return time.Millisecond, time.Now().Before(begin) || time.Since(begin) > d
			}
		}
	}
	for name, tt := range map[string]struct {
		path func() func(*dns.Msg) (time.Duration, bool)
		tcp  bool
	}{
		"loss": {path: func() func(*dns.Msg) (time.Duration, bool) {
			lost := halfLost()
			return func(q *dns.Msg) (time.Duration, bool) { return 20 * time.Millisecond, !lost(q) }
		}},
		"delay": {path: func() func(*dns.Msg) (time.Duration, bool) {
			return func(*dns.Msg) (time.Duration, bool) { return 2500 * time.Millisecond, true }
		}},
		"delay, TCP": {tcp: true, path: func() func(*dns.Msg) (time.Duration, bool) {
			return func(*dns.Msg) (time.Duration, bool) { return 2500 * time.Millisecond, true }
		}},
		"probes dropped": {path: func() func(*dns.Msg) (time.Duration, bool) {
			lost := halfLost()
			return func(q *dns.Msg) (time.Duration, bool) {
				return time.Millisecond, q.Question[0].Qtype != dns.TypeNS && !lost(q)
			}
		}},
		"restart 1 s":       {path: restart(time.Second)},
		"restart 5 s":       {path: restart(5 * time.Second)},
		"restart 10 s":      {path: restart(10 * time.Second)},
		"restart 5 s, TCP":  {path: restart(5 * time.Second), tcp: true},
		"restart 10 s, TCP": {path: restart(10 * time.Second), tcp: true},
	} {
		t.Run(name, func(t *testing.T) {
			answered := func(noFailFast bool) (n int) {
				synctest.Test(t, func(t *testing.T) {
					pass := tt.path()
					d := &path{pass: func(q *dns.Msg, _ bool) (time.Duration, bool) { return pass(q) }}
					p := pathPool(t, d, func(c *PoolConfig) { c.MaxFails, c.ForceTCP, c.NoFailFast = 2, tt.tcp, noFailFast })
					for _, o := range load(p, 30*time.Second) {
						if o.err == nil {
							n++
						}
					}
				})
				return n
			}
			const all = 600
			fast, plain := answered(false), answered(true)
			t.Logf("%d of %d answered, %d without fail-fast", fast, all, plain)
			if fast < plain-all/100 {
				t.Errorf("%d answered, %d without fail-fast", fast, plain)
			}
		})
	}
}

// halfLost returns a function that loses half of the queries: for each name the
// same ones whenever it is called.
func halfLost() func(*dns.Msg) bool {
	nth := make(map[string]int)
	return func(q *dns.Msg) bool {
		name := q.Question[0].Name
		nth[name]++
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d", name, nth[name])
		return rand.New(rand.NewPCG(uint64(h.Sum32()), 0)).IntN(2) == 0
	}
}

// TestTrialsNeedNoProbe: nodens detects the return of a resolver that answers
// questions but drops the probes.
func TestTrialsNeedNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var off atomic.Bool
		off.Store(true)
		pa := &path{pass: func(q *dns.Msg, _ bool) (time.Duration, bool) {
			return time.Millisecond, !off.Load() && q.Question[0].Qtype != dns.TypeNS
		}}
		p := pathPool(t, pa, func(c *PoolConfig) { c.MaxFails = 2 })
		load(p, 15*time.Second)
		if !p.down.Load() {
			t.Fatal("no outage")
		}
		off.Store(false)
		for _, o := range load(p, 3*time.Second) {
			if o.at > 700*time.Millisecond && o.err != nil {
				t.Errorf("%v after the return: %v", o.at, o.err)
			}
		}
	})
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var off atomic.Bool
		off.Store(true)
		p, _ := outagePool(t, &off, func(c *PoolConfig) { c.Limits.Pending = 40 }, addrA)
		load(p, 3500*time.Millisecond)
		for p.active.Load() > 0 { // no late answer is taken any more
			time.Sleep(10 * time.Millisecond)
		}
		if !p.down.Load() {
			t.Fatal("no outage")
		}
		var failed, ended atomic.Int32
		for range 45 {
			p.Start(asking("example.org.", dns.TypeA), time.Time{}, func(_ *dns.Msg, err error) {
				ended.Add(1)
				if errors.Is(err, ErrDown) {
					failed.Add(1)
				}
			})
		}
		if n := failed.Load(); n < 24 || n > 25 { // one may be a trial
			t.Errorf("%d of 45 refused at once, want all above half of the limit", n)
		}
		off.Store(false)
		time.Sleep(time.Second)
		if n := ended.Load(); n != 45 || failed.Load() > 25 {
			t.Errorf("%d ended, %d with an error", n, failed.Load())
		}
		if n := p.active.Load(); n != 0 {
			t.Errorf("%d exchanges left", n)
		}
	})
}

func TestPendingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var off atomic.Bool
		off.Store(true)
		p, _ := outagePool(t, &off, func(c *PoolConfig) { c.Limits.Pending = 10 }, addrA)
		var refused atomic.Int32
		for range 12 {
			p.Start(asking("example.org.", dns.TypeA), time.Time{}, func(_ *dns.Msg, err error) {
				if errors.Is(err, ErrOverloaded) {
					refused.Add(1)
				}
			})
		}
		if n := refused.Load(); n != 2 {
			t.Errorf("%d of 12 refused, want 2", n)
		}
	})
}

// TestNoOutage: no case in the table may make a pool fail fast.
func TestNoOutage(t *testing.T) {
	t.Run("max_fails 0", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var off atomic.Bool
			off.Store(true)
			p, _ := outagePool(t, &off, func(c *PoolConfig) { c.MaxFails = 0 }, addrA)
			load(p, 10*time.Second)
			if p.down.Load() {
				t.Error("an outage")
			}
		})
	})
	t.Run("no fail-fast", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var off atomic.Bool
			off.Store(true)
			p, _ := outagePool(t, &off, func(c *PoolConfig) { c.NoFailFast = true }, addrA)
			load(p, 10*time.Second)
			if p.down.Load() {
				t.Error("an outage")
			}
		})
	})
	t.Run("idle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var off atomic.Bool
			p, _ := outagePool(t, &off, nil, addrA)
			mustAnswer(t, p, "example.org.")
			off.Store(true)
			time.Sleep(time.Hour)
			if p.down.Load() {
				t.Error("an outage")
			}
		})
	})
	t.Run("errors of our own", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, _ := newTestPool(t, func(c *PoolConfig) {
				c.Dialer = dialerFunc(func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
				})
			}, Endpoint{Addr: netip.MustParseAddrPort(addrA)})
			start(t, p)
			load(p, 10*time.Second)
			if p.down.Load() || (*p.servers.Load())[0].dead.Load() {
				t.Error("an outage")
			}
		})
	})
	t.Run("a new endpoint", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var off atomic.Bool
			off.Store(true)
			p, _ := outagePool(t, &off, nil, addrA)
			load(p, 10*time.Second)
			if !p.down.Load() {
				t.Fatal("no outage")
			}
			p.SetEndpoints([]Endpoint{{Addr: netip.MustParseAddrPort(addrA)}, {Addr: netip.MustParseAddrPort(addrB)}})
			if p.down.Load() {
				t.Error("the outage continues with a new endpoint")
			}
		})
	})
}

// TestSlowIsNotDead has a server whose replies all take 2.5 s. That is longer than
// the time after which a query counts as failed.
func TestSlowIsNotDead(t *testing.T) {
	for name, tcp := range map[string]bool{"udp": false, "tcp": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines atomic.Int32
				pa := &path{pass: func(*dns.Msg, bool) (time.Duration, bool) { return 2500 * time.Millisecond, true }}
				p := pathPool(t, pa, func(c *PoolConfig) {
					c.MaxFails, c.ForceTCP = 2, tcp
					c.Logger = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) {
						if strings.Contains(string(b), "every upstream") {
							t.Errorf("an outage: %s", b)
						}
						lines.Add(1)
					}), nil))
				})
				for _, o := range load(p, 30*time.Second) {
					if o.err != nil || o.took != 2500*time.Millisecond {
						t.Errorf("started at %v: %v after %v", o.at, o.err, o.took)
					}
				}
				if n := lines.Load(); n > 4 {
					t.Errorf("%d log lines", n)
				}
			})
		})
	}
}

// TestLateReplyIsTaken: nodens uses a reply that comes up to 4 s after the first query,
// although it has sent further queries. After 3.9 s the client has an error, and the
// reply is for the cache.
func TestLateReplyIsTaken(t *testing.T) {
	const reported = 3900 * time.Millisecond
	for _, after := range []time.Duration{3850 * time.Millisecond, 3950 * time.Millisecond, 4050 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				pa := &path{pass: func(*dns.Msg, bool) (time.Duration, bool) { return after, n.Add(1) == 1 }}
				p := pathPool(t, pa, nil)
				began := time.Now()
				var mu sync.Mutex
				var got []ending
				p.Start(asking("example.org.", dns.TypeA), time.Time{}, func(_ *dns.Msg, err error) {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, ending{took: time.Since(began), err: err})
				})
				time.Sleep(5 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				var want []ending
				if after > reported {
					want = append(want, ending{took: reported, err: os.ErrDeadlineExceeded})
				}
				if after < defaultTimeout {
					want = append(want, ending{took: after})
				}
				if len(got) != len(want) || n.Load() < 3 {
					t.Fatalf("%v, want %v; %d queries", got, want, n.Load())
				}
				for i, w := range want {
					if got[i].took != w.took || !errors.Is(got[i].err, w.err) {
						t.Errorf("%v, want %v", got[i], w)
					}
				}
				if p.active.Load() != 0 {
					t.Error("the exchange has not ended")
				}
			})
		})
	}
}

// TestOneLinePerStateChange: the log names the zone and the server once.
func TestOneLinePerStateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var text strings.Builder
		var off atomic.Bool
		off.Store(true)
		p, _ := outagePool(t, &off, func(c *PoolConfig) {
			c.From = "example.org."
			c.Logger = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				text.Write(b)
			}), nil))
		}, addrA)
		load(p, 20*time.Second)
		off.Store(false)
		load(p, 2*time.Second)
		mu.Lock()
		defer mu.Unlock()
		for msg, want := range map[string]int{
			`msg="upstream is down" zone=example.org. upstream=192.0.2.1:53 error=`: 1,
			`msg="every upstream of the zone is down`:                               1,
			`msg="upstream is back" zone=example.org. upstream=192.0.2.1:53`:        1,
			`msg="queries are sent again" zone=example.org.`:                        1,
			"\n": 4,
		} {
			if n := strings.Count(text.String(), msg); n != want {
				t.Errorf("%d times %q, want %d", n, msg, want)
			}
		}
	})
}

// TestReplyRacesWithOutage: in every second round, a reply comes while missing replies
// make both servers lost. The pool fails fast only without it, whatever comes first.
func TestReplyRacesWithOutage(t *testing.T) {
	p, _ := newTestPool(t, nil, Endpoint{Addr: netip.MustParseAddrPort(addrA)}, Endpoint{Addr: netip.MustParseAddrPort(addrB)})
	question, err := newQuestion(asking("example.org.", dns.TypeA))
	if err != nil {
		t.Fatal(err)
	}
	servers := *p.servers.Load()
	for round := range 2000 {
		var work sync.WaitGroup
		for i, s := range servers {
			s.mu.Lock()
			s.fails, s.first = lostQueries, time.Now().Add(-2*lostAfter)
			s.heard = time.Time{}
			s.mu.Unlock()
			work.Go(func() { p.failed(s, os.ErrDeadlineExceeded, time.Now()) })
			if i == 0 && round%2 == 1 {
				q := &query{question: question, s: s, sent: time.Now()}
				work.Go(func() { p.heard(q, new(dns.Msg), replyAnswers, time.Now()) })
			}
		}
		work.Wait()
		if want := round%2 == 0; p.down.Load() != want {
			t.Fatalf("round %d: an outage: %v, want %v", round, p.down.Load(), want)
		}
		for _, s := range servers { // the next round begins without an outage
			p.heard(&query{question: question, s: s, sent: time.Now()}, new(dns.Msg), replyAnswers, time.Now())
		}
		if p.down.Load() {
			t.Fatal("the outage goes on after replies of all servers")
		}
	}
}
