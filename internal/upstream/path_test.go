package upstream

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// path is a Dialer in a synctest bubble that leads to one server. It answers a
// query after a while, or drops it or its reply; queries do not wait for each
// other.
type path struct {
	pass  func(q *dns.Msg, tcp bool) (after time.Duration, passes bool)
	reply func(q *dns.Msg, tcp bool) []byte // nil: answer
	// silence reports whether a connection brings no replies; nil: none does.
	silence func(net.Conn) bool
	noTCP   bool // TCP connections are refused

	mu   sync.Mutex
	seen []*dns.Msg
	work sync.WaitGroup
}

func (d *path) DialContext(_ context.Context, network, _ string) (net.Conn, error) {
	tcp := network == "tcp"
	if tcp && d.noTCP {
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	d.work.Go(func() {
		defer theirs.Close()
		buf := make([]byte, 1024)
		for {
			n, err := theirs.Read(buf)
			if err != nil {
				return
			}
			msg := buf[:n]
			for len(msg) > 0 {
				size := len(msg)
				if tcp {
					size = int(binary.BigEndian.Uint16(msg))
					msg = msg[2:]
				}
				d.handle(theirs, msg[:size], tcp)
				msg = msg[size:]
			}
		}
	})
	return ours, nil
}

func (d *path) handle(c net.Conn, b []byte, tcp bool) {
	q := new(dns.Msg)
	if err := q.Unpack(b); err != nil {
		panic(err)
	}
	d.mu.Lock()
	d.seen = append(d.seen, q)
	after, passes := d.pass(q, tcp)
	passes = passes && (d.silence == nil || !d.silence(c))
	d.mu.Unlock()
	if !passes {
		return
	}
	out := answer(q)
	if d.reply != nil {
		out = d.reply(q, tcp)
	}
	if tcp {
		out = frame(out)
	}
	d.work.Go(func() {
		time.Sleep(after)
		_, _ = c.Write(out)
	})
}

// queries returns what has arrived.
func (d *path) queries() []*dns.Msg {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

// pathPool makes a pool with default time limits and the one server of d.
func pathPool(t *testing.T, d *path, change func(*PoolConfig)) *Pool {
	p, _ := newTestPool(t, func(c *PoolConfig) {
		c.Dialer, c.Timeout, c.AttemptTimeout, c.NoHedge = d, 0, 0, false
		if change != nil {
			change(c)
		}
	}, Endpoint{Addr: netip.MustParseAddrPort(addrA)})
	t.Cleanup(d.work.Wait)
	start(t, p)
	return p
}

func took(t *testing.T, p *Pool, name string) time.Duration {
	t.Helper()
	began := time.Now()
	mustAnswer(t, p, name)
	return time.Since(began)
}

// TestPathDropsOPT: the queries without an OPT record get the first answers. Later
// names are answered at once. EDNS is on again when the path passes it.
func TestPathDropsOPT(t *testing.T) {
	for name, noHedge := range map[string]bool{"hedging": false, "no hedging": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var drops atomic.Bool
				drops.Store(true)
				d := &path{pass: func(q *dns.Msg, tcp bool) (time.Duration, bool) {
					return time.Millisecond, !drops.Load() || tcp || q.IsEdns0() == nil
				}}
				p := pathPool(t, d, func(c *PoolConfig) { c.MaxFails, c.NoHedge = 2, noHedge })
				if d := took(t, p, "first.example."); d > 2500*time.Millisecond {
					t.Errorf("the first name took %v", d)
				}
				time.Sleep(dropsAfter)
				for range 12 {
					if d := took(t, p, "next.example."); d != time.Millisecond {
						t.Errorf("a later name took %v", d)
					}
				}
				time.Sleep(dropsFor)
				if d := took(t, p, "again.example."); !noHedge && d > hedgeSoonest+2*time.Millisecond {
					t.Errorf("a name at the end of the pause took %v", d)
				}
				drops.Store(false)
				time.Sleep(noEDNSFor)
				took(t, p, "healed.example.")
				before := len(d.queries())
				took(t, p, "last.example.")
				if d.queries()[before].IsEdns0() == nil {
					t.Error("no EDNS over a path that passes it")
				}
			})
		})
	}
}

// TestOneBadNameKeepsEDNS: a name whose reply with EDNS is lost must not turn
// it off for others.
func TestOneBadNameKeepsEDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &path{pass: func(q *dns.Msg, tcp bool) (time.Duration, bool) {
			return time.Millisecond, tcp || q.IsEdns0() == nil || q.Question[0].Name != "bad.example."
		}}
		p := pathPool(t, d, nil)
		took(t, p, "bad.example.")
		took(t, p, "good.example.")
		time.Sleep(2 * dropsAfter)
		if on, suspect := (*p.servers.Load())[0].edns.state(time.Now()); !on || suspect {
			t.Errorf("EDNS on %v, suspect %v after a reply with it", on, suspect)
		}
	})
}

// TestPathLosesLargeReplies: replies above 512 bytes are lost, over UDP.
func TestPathLosesLargeReplies(t *testing.T) {
	for name, change := range map[string]func(*dns.Msg){
		"plain": func(*dns.Msg) {},
		"DO":    func(m *dns.Msg) { m.SetEdns0(1232, true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				large := func(q *dns.Msg, tcp bool) bool { return !tcp && q.IsEdns0() != nil && q.IsEdns0().UDPSize() > 512 }
				d := &path{
					pass: func(q *dns.Msg, tcp bool) (time.Duration, bool) { return time.Millisecond, !large(q, tcp) },
					reply: func(q *dns.Msg, tcp bool) []byte {
						return reply(q, func(m *dns.Msg) {
							if m.Truncated = !tcp; tcp {
								for range 60 {
									withA("192.0.2.1")(m)
								}
							}
						})
					},
				}
				p := pathPool(t, d, nil)
				for range 12 {
					m := asking("large.example.", dns.TypeA)
					change(m)
					began := time.Now()
					r, err := p.Exchange(t.Context(), m)
					if err != nil || r.Truncated || len(r.Answer) != 60 || time.Since(began) > 2500*time.Millisecond {
						t.Fatalf("%v after %v:\n%v", err, time.Since(began), r)
					}
				}
			})
		})
	}
}

// TestTCPIsRefused: a server that drops AAAA queries and refuses TCP, but answers A
// queries, is never down.
func TestTCPIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &path{noTCP: true, pass: func(q *dns.Msg, _ bool) (time.Duration, bool) {
			return time.Millisecond, q.Question[0].Qtype == dns.TypeA
		}}
		p := pathPool(t, d, func(c *PoolConfig) {
			c.MaxFails, c.Recovered = 2, func() { t.Error("the server was down") }
		})
		var silent sync.WaitGroup
		for range 64 { // more than the budget of hedges: the third form is TCP
			silent.Go(func() {
				if _, err := p.Exchange(t.Context(), asking("x.example.", dns.TypeAAAA)); err == nil {
					t.Error("a dropped query has an answer")
				}
			})
		}
		for range 100 {
			took(t, p, "x.example.")
			time.Sleep(50 * time.Millisecond)
		}
		silent.Wait()
	})
}

// TestFactsSurviveNewEndpoints: a pool keeps the facts about an endpoint that is
// removed and added again.
func TestFactsSurviveNewEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &path{pass: func(*dns.Msg, bool) (time.Duration, bool) { return time.Millisecond, true }}
		p := pathPool(t, d, nil)
		s := (*p.servers.Load())[0]
		s.edns.rejected(time.Now())
		p.SetEndpoints(nil)
		p.SetEndpoints([]Endpoint{s.Endpoint})
		took(t, p, "example.org.")
		if d.queries()[0].IsEdns0() != nil {
			t.Error("queried with an OPT record")
		}
		for i := range factsKept {
			p.SetEndpoints([]Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), uint16(1000+i))}})
		}
		if p.facts.Len() > factsKept || p.facts.Contains(s.Endpoint) {
			t.Error("facts are kept without a bound")
		}
	})
}
