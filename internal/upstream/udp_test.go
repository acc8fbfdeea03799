package upstream

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// spoiled makes a reply with another address, which spoil makes invalid.
func spoiled(q *dns.Msg, spoil func(*dns.Msg)) []byte {
	return reply(q, func(m *dns.Msg) { withA("203.0.113.66")(m); spoil(m) })
}

func TestUDPIgnoresInvalidReplies(t *testing.T) {
	tests := []struct {
		name   string
		bad    func(q *dns.Msg) []byte
		reason verdict
	}{
		{"other name", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question[0].Name = "evil.example." })
		}, wrongQuestion},
		{"longer name", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question[0].Name = "a." + m.Question[0].Name })
		}, wrongQuestion},
		{"other class", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
		}, wrongQuestion},
		{"other type", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA })
		}, wrongQuestion},
		{"two questions", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })
		}, wrongQuestion},
		{"no question", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question = nil })
		}, wrongQuestion},
		{"other ID", func(q *dns.Msg) []byte { return spoiled(q, func(m *dns.Msg) { m.Id++ }) }, wrongID},
		{"a query", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Response = false })
		}, notResponse},
		{"other opcode", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify })
		}, wrongOpcode},
		{"records cut", func(q *dns.Msg) []byte { b := answer(q); return b[:len(b)-3] }, undecodable},
		{"fewer answers than announced", func(q *dns.Msg) []byte {
			b := spoiled(q, func(m *dns.Msg) { m.Answer = nil })
			b[7] = 1 // ANCOUNT
			return b
		}, undecodable},
		{"less authority than announced", func(q *dns.Msg) []byte {
			b := spoiled(q, func(m *dns.Msg) { m.Answer = nil })
			b[9] = 1 // NSCOUNT
			return b
		}, undecodable},
		{"an OPT record as answer", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.SetEdns0(1232, false); m.Answer, m.Extra = append(m.Answer, m.Extra...), nil })
		}, undecodable},
		{"no question, a bad rcode", func(q *dns.Msg) []byte {
			return spoiled(q, func(m *dns.Msg) { m.Question, m.Rcode = nil, dns.RcodeFormatError })
		}, wrongQuestion},
		{"header with a bad rcode of another ID", func(q *dns.Msg) []byte {
			return reply(q, func(m *dns.Msg) { *m = dns.Msg{MsgHdr: m.MsgHdr}; m.Id++; m.Rcode = dns.RcodeFormatError })
		}, wrongID},
		{"header with SERVFAIL", func(q *dns.Msg) []byte {
			return reply(q, func(m *dns.Msg) { *m = dns.Msg{MsgHdr: m.MsgHdr}; m.Rcode = dns.RcodeServerFailure })
		}, wrongQuestion},
		{"header only", func(q *dns.Msg) []byte { return answer(q)[:12] }, wrongQuestion},
		{"short", func(q *dns.Msg) []byte { return []byte{1, 2, 3} }, tooShort},
		{"empty", func(q *dns.Msg) []byte { return nil }, tooShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.onUDP = func(q seen, send func([]byte)) {
					send(tt.bad(q.msg))
					send(answer(q.msg))
				}
			})
			p, reg := newTestPool(t, nil, f.endpoint())
			m := mustAnswer(t, p, "good.example.")
			if got := m.Answer[0].(*dns.A).A.String(); got != "192.0.2.1" {
				t.Errorf("address %s is from the spoofed reply", got)
			}
			if n := len(f.queries()); n != 1 {
				t.Errorf("%d queries, want 1", n)
			}
			wantSeries(t, reg, 1, "nodens_upstream_ignored_replies_total", "reason", string(tt.reason))
		})
	}
}

func TestUDPIgnoresOtherPorts(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			other, err := net.DialUDP("udp", &net.UDPAddr{IP: f.addr.Addr().AsSlice()}, net.UDPAddrFromAddrPort(q.from))
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Close()
			_, _ = other.Write(spoiled(q.msg, func(*dns.Msg) {}))
			send(answer(q.msg))
		}
	})
	p, _ := newTestPool(t, nil, f.endpoint())
	if got := mustAnswer(t, p, "good.example.").Answer[0].(*dns.A).A.String(); got != "192.0.2.1" {
		t.Errorf("address %s came from another port", got)
	}
}

// TestPortsAndIDs: a port serves at most portUses queries, the next one is a random
// one of many, and neither ports nor IDs are sequential.
func TestPortsAndIDs(t *testing.T) {
	const n = 2000
	f := newFake(t, nil)
	p, _ := newTestPool(t, nil, f.endpoint())
	for range n {
		mustAnswer(t, p, "example.org.")
	}
	uses, ids := make(map[uint16]int), make(map[uint16]bool)
	steps, again := 0, 0
	var last seen
	for i, q := range f.queries() {
		uses[q.from.Port()]++
		ids[q.msg.Id] = true
		if i > 0 && (q.from.Port()-last.from.Port()-1 < 3 || q.msg.Id-last.msg.Id < 3) {
			steps++
		}
		if q.from == last.from {
			again++
		}
		last = q
	}
	for port, k := range uses {
		if k > 2*portUses { // the kernel may assign a port a second time
			t.Errorf("port %d was used %d times", port, k)
		}
	}
	// Random draws give about 1970 different IDs, and the port of the last
	// query once in portsKept times.
	if len(uses) < n/portUses || len(ids) < 1900 || steps > 60 || again > 4*n/portsKept {
		t.Errorf("%d queries: %d ports, %d IDs, %d neighbours, %d times the same port again", n, len(uses), len(ids), steps, again)
	}
}

// TestFewQueriesGetPortsOfTheirOwn: while there are too few ports to choose from,
// each query gets a new one.
func TestFewQueriesGetPortsOfTheirOwn(t *testing.T) {
	f := newFake(t, nil)
	p, _ := newTestPool(t, nil, f.endpoint())
	ports := make(map[uint16]bool)
	for range portsKept {
		mustAnswer(t, p, "example.org.")
	}
	for _, q := range f.queries() {
		ports[q.from.Port()] = true
	}
	if len(ports) < portsKept-1 { // a port may repeat if the queries take longer than portAge
		t.Errorf("%d ports for %d queries", len(ports), portsKept)
	}
}

// TestOldPortsAreClosed: an idle port is closed at portAge.
func TestOldPortsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(pipes)
		d.set(addrA, true)
		p, _, stop := bubblePool(t, d, nil, addrA)
		mustAnswer(t, p, "example.org.")
		synctest.Wait()
		if n := (*p.servers.Load())[0].ports.idleNow(); n != 1 {
			t.Errorf("%d idle ports, want 1", n)
		}
		time.Sleep(portAge + 10*time.Millisecond)
		synctest.Wait()
		if n := (*p.servers.Load())[0].ports.idleNow(); n != 0 {
			t.Errorf("%d idle ports after %v, want none", n, portAge)
		}
		stop()
	})
}

func (ps *ports) idleNow() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.idle)
}

func TestOnlyTheQuestionLeaves(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   bool
		size int
	}{{"DO", true, 4096}, {"no DO", false, 512}} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, nil)
			p, _ := newTestPool(t, nil, f.endpoint())
			m := asking("Example.ORG.", dns.TypeA)
			m.CheckingDisabled, m.AuthenticatedData, m.Zero = true, true, true
			m.SetEdns0(uint16(tt.size), tt.do)
			opt := m.IsEdns0()
			opt.Option = []dns.EDNS0{
				&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IP{192, 0, 2, 0}},
				&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
				&dns.EDNS0_PADDING{Padding: make([]byte, 32)},
				&dns.EDNS0_NSID{Code: dns.EDNS0NSID},
			}
			before := m.String()
			reply, err := p.Exchange(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			if m.String() != before {
				t.Error("the question was modified")
			}
			q := f.queries()[0].msg
			out := q.IsEdns0()
			switch {
			case out == nil:
				t.Fatal("no OPT record")
			case len(out.Option) != 0 || out.Do() != tt.do || out.UDPSize() != 1232 || out.Version() != 0:
				t.Errorf("OPT record %v", out)
			case !q.CheckingDisabled || !q.RecursionDesired || !q.AuthenticatedData || q.Zero:
				t.Errorf("flags %v", q.MsgHdr)
			case len(q.Extra) != 1 || len(q.Answer)+len(q.Ns) != 0:
				t.Errorf("more than the question:\n%v", q)
			case q.Id == m.Id && f.queries()[0].raw[0] == byte(m.Id>>8):
				t.Log("same ID by chance")
			}
			if reply.Question[0] != m.Question[0] || reply.IsEdns0() != nil {
				t.Errorf("reply:\n%v", reply)
			}
		})
	}
}

func TestAnswerRepeatsTheQuestionAsAsked(t *testing.T) {
	f := newFake(t, answering(func(m *dns.Msg) {
		m.Question[0].Name = strings.ToLower(m.Question[0].Name)
		withA("192.0.2.1")(m)
	}))
	p, _ := newTestPool(t, nil, f.endpoint())
	m := mustAnswer(t, p, "wWw.ExAmPlE.org.")
	if m.Question[0].Name != "wWw.ExAmPlE.org." || m.Answer[0].Header().Name != "wWw.ExAmPlE.org." {
		t.Errorf("reply:\n%v", m)
	}
}

func TestEDNSFallback(t *testing.T) {
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers} {
		t.Run(rcodeLabel(rcode), func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.onUDP = func(q seen, send func([]byte)) {
					if q.msg.IsEdns0() == nil {
						send(answer(q.msg))
						return
					}
					send(reply(q.msg, func(m *dns.Msg) {
						m.Rcode = rcode
						if rcode > 15 {
							m.SetEdns0(512, false)
						}
					}))
				}
			})
			now := time.Now()
			p, _ := newTestPool(t, func(c *PoolConfig) { c.Now = func() time.Time { return now } }, f.endpoint())
			for _, step := range []struct {
				later time.Duration
				total int
			}{{0, 2}, {time.Second, 3}, {noEDNSFor, 5}} {
				now = now.Add(step.later)
				mustAnswer(t, p, "example.org.")
				if n := len(f.queries()); n != step.total {
					t.Errorf("after %v: %d queries, want %d", step.later, n, step.total)
				}
			}
		})
	}
	t.Run("bare header", func(t *testing.T) {
		f := newFake(t, func(f *fake) {
			f.onUDP = func(q seen, send func([]byte)) {
				if q.msg.IsEdns0() == nil {
					send(answer(q.msg))
					return
				}
				send(reply(q.msg, func(m *dns.Msg) { *m = dns.Msg{MsgHdr: m.MsgHdr}; m.Rcode = dns.RcodeFormatError }))
			}
		})
		p, _ := newTestPool(t, nil, f.endpoint())
		for total := range 2 { // then it is known
			mustAnswer(t, p, "example.org.")
			if n := len(f.queries()); n != 2+total {
				t.Errorf("%d queries, want %d", n, 2+total)
			}
		}
	})
	t.Run("one bad name", func(t *testing.T) {
		f := newFake(t, func(f *fake) {
			f.onUDP = func(q seen, send func([]byte)) {
				opt := q.msg.IsEdns0()
				switch {
				case opt != nil && q.msg.Question[0].Name == "old.example.":
					send(reply(q.msg, withRcode(dns.RcodeFormatError)))
				case opt != nil:
					send(reply(q.msg, func(m *dns.Msg) { withA("192.0.2.1")(m); m.SetEdns0(1232, false) }))
				default:
					send(answer(q.msg))
				}
			}
		})
		now := time.Now()
		p, _ := newTestPool(t, func(c *PoolConfig) { c.Now = func() time.Time { return now } }, f.endpoint())
		ask := func(name string, want int) {
			t.Helper()
			before := len(f.queries())
			mustAnswer(t, p, name)
			q := f.queries()[before:]
			if len(q) != want || want < 2 && q[0].msg.IsEdns0() == nil {
				t.Errorf("%s: %d queries, want %d with EDNS first", name, len(q), want)
			}
		}
		ask("www.example.", 1)
		ask("old.example.", 2)
		ask("www.example.", 1)
		ask("old.example.", 2)
		now = now.Add(noEDNSFor) // no OPT record has come since
		ask("old.example.", 2)
		if on, _ := (*p.servers.Load())[0].edns.state(now); on {
			t.Errorf("EDNS is still on after %v without an OPT record", noEDNSFor)
		}
	})
	t.Run("FORMERR without EDNS too", func(t *testing.T) {
		f := newFake(t, answering(withRcode(dns.RcodeFormatError)))
		p, _ := newTestPool(t, nil, f.endpoint())
		for i := range 2 {
			if m, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); err == nil {
				t.Errorf("FORMERR counts as an answer:\n%v", m)
			}
			if q := f.queries(); len(q) != 2*(i+1) || q[2*i].msg.IsEdns0() == nil {
				t.Errorf("round %d: %d queries", i, len(q))
			}
		}
	})
}

func TestRefusedConnectionAsksNextServer(t *testing.T) {
	closed := newFake(t, nil)
	closed.close()
	f := newFake(t, nil)
	p, _ := newTestPool(t, nil, closed.endpoint(), f.endpoint())
	began := time.Now()
	mustAnswer(t, p, "example.org.")
	if time.Since(began) > long/2 {
		t.Error("waited for a server whose port is closed")
	}
	p, _ = newTestPool(t, nil, closed.endpoint())
	var e *Error
	if _, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA)); !errors.As(err, &e) || e.EDE != edeNetworkError {
		t.Errorf("error %v, want EDE %d", err, edeNetworkError)
	}
}

func TestSilenceIsRepeated(t *testing.T) {
	n := 0
	f := newFake(t, func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			if n++; n > 1 {
				send(answer(q.msg))
			}
		}
	})
	p, _ := newTestPool(t, func(c *PoolConfig) { c.NoHedge = false }, f.endpoint())
	mustAnswer(t, p, "example.org.")
	q := f.queries()
	if len(q) < 2 || q[0].from == q[1].from && q[0].msg.Id == q[1].msg.Id {
		t.Error("a retry must use a new port and ID")
	}
}

func TestSilenceIsNoReachableAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{delay: func(string, int) time.Duration { return never }}
		p := hedgePool(t, d, time.Millisecond, func(c *PoolConfig) { c.Timeout, c.NoHedge, c.MaxFails = long, true, 0 }, addrA)
		_, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
		var e *Error
		if !errors.As(err, &e) || e.EDE != edeNoReachableAuthority || !strings.Contains(err.Error(), addrA) {
			t.Errorf("error %v, want EDE %d and the address", err, edeNoReachableAuthority)
		}
		if got, _ := d.asked(); len(got) != triesOfOne {
			t.Errorf("%d tries, want %d", len(got), triesOfOne)
		}
	})
}
