package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// example answers for example.org.
func example(t testing.TB) sourceFunc {
	return func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		name := strings.ToLower(m.Question[0].Name)
		switch name {
		case "www.example.org.":
			return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
		case "big.example.org.":
			return reply(t, m, withTXT(60)...), nil
		case "gone.example.org.":
			r := reply(t, m)
			r.Rcode = dns.RcodeNameError
			r.Ns = reply(t, m, "example.org. 60 IN SOA ns.example.org. h.example.org. 1 1 1 1 60").Answer
			return r, nil
		case "ad.example.org.":
			r := reply(t, m, "ad.example.org. 60 IN A 192.0.2.2")
			r.AuthenticatedData = true
			return r, nil
		}
		return nil, &upstream.Error{EDE: 22, Err: errors.New("upstream is down")}
	}
}

func TestReplies(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	for _, round := range []string{"miss", "hit"} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(round+" "+network, func(t *testing.T) { testReplies(t, ts, network) })
		}
	}
}

func testReplies(t *testing.T, ts *testServer, network string) {
	t.Run("answer", func(t *testing.T) {
		r := ts.ask(t, network, query("wWw.exaMPle.org.", dns.TypeA))
		if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 || r.Question[0].Name != "wWw.exaMPle.org." {
			t.Errorf("reply %v", r)
		}
		if r.Answer[0].Header().Name != "wWw.exaMPle.org." && r.Answer[0].Header().Name != "www.example.org." {
			t.Errorf("owner %s", r.Answer[0].Header().Name)
		}
		if !r.RecursionAvailable || !r.RecursionDesired || r.IsEdns0() != nil {
			t.Errorf("header %+v, OPT %v", r.MsgHdr, r.IsEdns0())
		}
	})
	t.Run("OPT if requested", func(t *testing.T) {
		r := ts.ask(t, network, query("www.example.org.", dns.TypeA, withEDNS(4096, true)))
		if o := r.IsEdns0(); o == nil || o.UDPSize() != 1232 || !o.Do() || o.Version() != 0 {
			t.Errorf("OPT %v", o)
		}
	})
	t.Run("NXDOMAIN", func(t *testing.T) {
		r := ts.ask(t, network, query("gone.example.org.", dns.TypeA))
		if r.Rcode != dns.RcodeNameError || len(r.Ns) != 1 {
			t.Errorf("reply %v", r)
		}
	})
	t.Run("no zone", func(t *testing.T) {
		if r := ts.ask(t, network, query("example.com.", dns.TypeA)); r.Rcode != dns.RcodeRefused {
			t.Errorf("reply %v", r)
		}
	})
	t.Run("AD only if requested", func(t *testing.T) {
		if r := ts.ask(t, network, query("ad.example.org.", dns.TypeA)); r.AuthenticatedData {
			t.Errorf("AD set: %v", r)
		}
		r := ts.ask(t, network, query("ad.example.org.", dns.TypeA, func(m *dns.Msg) { m.AuthenticatedData = true }))
		if !r.AuthenticatedData {
			t.Errorf("AD not set: %v", r)
		}
	})
	t.Run("SERVFAIL with EDE", func(t *testing.T) {
		r := ts.ask(t, network, query("none.example.org.", dns.TypeA, withEDNS(1232, false)))
		o := r.IsEdns0()
		if r.Rcode != dns.RcodeServerFailure || o == nil || len(o.Option) != 1 || o.Option[0].Option() != dns.EDNS0EDE {
			t.Errorf("reply %v", r)
		}
		if r := ts.ask(t, network, query("none.example.org.", dns.TypeA)); r.IsEdns0() != nil {
			t.Errorf("OPT unasked: %v", r)
		}
	})
	t.Run("EDNS version", func(t *testing.T) {
		m := query("www.example.org.", dns.TypeA, withEDNS(1232, false))
		m.IsEdns0().SetVersion(1)
		r := ts.ask(t, network, m)
		if r.Rcode != dns.RcodeBadVers || r.IsEdns0().Version() != 0 {
			t.Errorf("reply %v", r)
		}
	})
}

func TestTruncationKeepsWhatFits(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	for _, c := range []struct {
		opts  []func(*dns.Msg)
		limit int
	}{
		{nil, 512},
		{[]func(*dns.Msg){withEDNS(100, false)}, 512},
		{[]func(*dns.Msg){withEDNS(900, false)}, 900},
		{[]func(*dns.Msg){withEDNS(4096, false)}, 1232},
	} {
		r := ts.ask(t, "udp", query("big.example.org.", dns.TypeTXT, c.opts...))
		r.Compress = true
		record := dns.Len(r.Answer[0]) - len("big.example.org.") + 1
		if got := r.Len(); !r.Truncated || got > c.limit || got+record <= c.limit {
			t.Errorf("limit %d: %d bytes, TC %t, %d records", c.limit, got, r.Truncated, len(r.Answer))
		}
	}
	if r := ts.ask(t, "tcp", query("big.example.org.", dns.TypeTXT)); r.Truncated || len(r.Answer) != 60 {
		t.Errorf("TCP: TC %t, %d records", r.Truncated, len(r.Answer))
	}
}

// TestReplyFromAskedAddress serves the wildcard and queries three addresses of the
// host. A connected socket accepts replies only from the queried address.
func TestReplyFromAskedAddress(t *testing.T) {
	for _, wild := range []string{"0.0.0.0", "::"} {
		t.Run(wild, func(t *testing.T) {
			port := uint16(20000 + (uint32(os.Getpid())<<4+addrs.Add(1))%10000)
			ts := newTestServer(t, Config{})
			wildcard := netip.AddrPortFrom(netip.MustParseAddr(wild), port)
			if err := ts.Apply(t.Context(), []Binding{{Addr: wildcard, Zones: []*Zone{zone("example.org.", newCache(t), example(t))}}}); err != nil {
				t.Skipf("no such address family: %v", err)
			}
			asked := []string{"127.0.0.1", "127.0.0.2", "127.9.9.9"}
			if wild == "::" {
				asked = append(asked, "::1")
			}
			for _, a := range asked {
				ts.addr = netip.AddrPortFrom(netip.MustParseAddr(a), port)
				for _, name := range []string{"www.example.org.", "gone.example.org."} {
					ts.ask(t, "udp", query(name, dns.TypeA)) // miss
					ts.ask(t, "udp", query(name, dns.TypeA)) // hit
				}
			}
		})
	}
}

// TestOneQueryForAllClients holds the source until all clients wait. Meanwhile
// they hold no goroutine and little memory.
func TestOneQueryForAllClients(t *testing.T) {
	const clients = 2000
	var asked atomic.Int32
	release := make(chan struct{})
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		asked.Add(1)
		<-release
		return example(t)(ctx, m)
	}))
	msg := pack(t, query("www.example.org.", dns.TypeA))
	before := heap()
	conns := make([]net.Conn, 20)
	for i := range conns {
		c, err := net.Dial("udp", ts.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
		for id := range clients / len(conns) {
			binary.BigEndian.PutUint16(msg, uint16(id))
			if _, err := c.Write(msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	for ts.inflight.waiters() < clients {
		if t.Context().Err() != nil {
			t.Fatal("not all queries arrived")
		}
		time.Sleep(time.Millisecond) // the length of a queue has no signal
	}
	if n := runtime.NumGoroutine(); n > 100 {
		t.Errorf("%d goroutines while %d clients wait", n, clients)
	}
	if n := (int64(heap()) - int64(before)) / clients; n > 512 {
		t.Errorf("%d bytes for each waiting client", n)
	}
	close(release)
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			seen := make(map[uint16]bool)
			buf := make([]byte, 1500)
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			for len(seen) < clients/len(conns) {
				n, err := c.Read(buf)
				if err != nil {
					t.Errorf("after %d replies: %v", len(seen), err)
					return
				}
				if rcode := int(buf[:n][3]) & rcodeMask; rcode != dns.RcodeSuccess {
					t.Errorf("rcode %d", rcode)
				}
				seen[binary.BigEndian.Uint16(buf)] = true
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("source queried %d times", n)
	}
}

// heap is the number of bytes of live objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestTooManyMissesGetServfail(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{})
	var once sync.Once
	ts := newTestServer(t, Config{MaxMisses: 1}, zone("example.org.", newCache(t), func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		once.Do(func() { close(entered) })
		<-release
		return example(t)(ctx, m)
	}))
	first := make(chan *dns.Msg)
	go func() { first <- ts.ask(t, "udp", query("www.example.org.", dns.TypeA)) }()
	<-entered
	if r := ts.ask(t, "udp", query("gone.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("second miss: %v", r)
	}
	close(release)
	if r := <-first; r.Rcode != dns.RcodeSuccess {
		t.Errorf("first miss: %v", r)
	}
}

// TestOverloadIsNotStored: a question that was not sent, because of an overload of
// this process or an outage, is sent again. A failure of upstream is stored.
func TestOverloadIsNotStored(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{{upstream.ErrOverloaded, dns.RcodeSuccess}, {upstream.ErrDown, dns.RcodeSuccess}, {errors.New("down"), dns.RcodeServerFailure}} {
		var asked atomic.Int32
		now := time.Now()
		clock := func() time.Time { return now }
		ts := newTestServer(t, Config{Now: clock}, zone(".", cacheAt(t, clock), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
			if asked.Add(1) == 1 {
				return nil, &upstream.Error{Err: tt.err}
			}
			return reply(t, m, "www.example.org. 60 IN A 192.0.2.1"), nil
		}))
		if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v: %s", tt.err, dns.RcodeToString[r.Rcode])
		}
		if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != tt.want {
			t.Errorf("%v, queried again: %s, want %s", tt.err, dns.RcodeToString[r.Rcode], dns.RcodeToString[tt.want])
		}
	}
}

// TestPanicIsServfail: one bad query does not end the node's DNS.
func TestPanicIsServfail(t *testing.T) {
	now := &fakeClock{t: time.Now()} // stands still, so later queries check the cache again
	ts := newTestServer(t, Config{Now: now.Now}, zone("example.org.", cacheAt(t, now.Now), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		if strings.HasPrefix(m.Question[0].Name, "boom") {
			panic("boom")
		}
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	}))
	for i, name := range []string{"boom1", "www", "boom2", "ftp"} {
		want := dns.RcodeServerFailure
		if i%2 == 1 {
			want = dns.RcodeSuccess
		}
		if r := ts.ask(t, "udp", query(name+".example.org.", dns.TypeA)); r.Rcode != want {
			t.Errorf("%s: %v", name, r)
		}
	}
	if n := ts.metrics.panics.Load(); n != 2 {
		t.Errorf("%d panics counted, want 2", n)
	}
}

// TestStaleVerify: clients get an expired answer only if the source fails. A
// fresh NXDOMAIN replaces it (RFC 8767 §4).
func TestStaleVerify(t *testing.T) {
	now := &fakeClock{t: time.Now()}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success: cache.Class{MaxTTL: time.Hour}, Denial: cache.Class{MaxTTL: time.Hour},
		StaleFor: time.Hour, StaleVerify: true,
	})
	var mode atomic.Int32
	ts := newTestServer(t, Config{Now: now.Now}, zone("example.org.", c, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		switch mode.Load() {
		case 1:
			return nil, errors.New("down")
		case 2:
			m = m.Copy()
			m.Question[0].Name = "gone.example.org."
			r, err := example(t)(ctx, m)
			r.Question[0].Name = "www.example.org."
			return r, err
		}
		return example(t)(ctx, m)
	}))
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	mode.Store(1)
	now.advance(2 * time.Minute)
	r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA, withEDNS(1232, false)))
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 || r.Answer[0].Header().Ttl != 30 {
		t.Errorf("stale: %v", r)
	}
	if e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeStaleAnswer {
		t.Errorf("stale options: %v", r.IsEdns0())
	}
	mode.Store(2)
	now.advance(2 * time.Minute) // past the cached failure
	if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeNameError {
		t.Errorf("revived as NXDOMAIN: %v", r)
	}
	mode.Store(1)
	if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeNameError {
		t.Errorf("after NXDOMAIN: %v", r)
	}
}

// fakeClock is a clock that moves only with advance.
type fakeClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// TestPipelining sends a slow query and then 99 fast ones on one connection. The
// slow one is answered last.
func TestPipelining(t *testing.T) {
	release := make(chan struct{})
	ts := newTestServer(t, Config{}, zone("example.org.", nil, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if strings.HasPrefix(m.Question[0].Name, "slow") {
			<-release
		}
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.9"), nil
	}))
	c := &dns.Conn{Conn: dialTCP(t, ts)}
	for i := range 100 {
		name := fmt.Sprintf("n%d.example.org.", i)
		if i == 0 {
			name = "slow.example.org."
		}
		m := query(name, dns.TypeA)
		m.Id = uint16(i)
		if err := c.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		r, err := c.ReadMsg()
		if err != nil {
			t.Fatalf("after %d replies: %v", i, err)
		}
		if (r.Id == 0) != (i == 99) {
			t.Errorf("reply %d has ID %d", i, r.Id)
		}
		if i == 98 {
			close(release)
		}
	}
}

func dialTCP(t *testing.T, ts *testServer) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", ts.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// TestTCPFraming writes single bytes, half-closes and still gets the answer.
func TestTCPFraming(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	c := dialTCP(t, ts)
	msg := pack(t, query("www.example.org.", dns.TypeA))
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	_ = c.SetNoDelay(true)
	for i := range frame {
		if _, err := c.Write(frame[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(c)
	var r dns.Msg
	if err != nil || len(all) < 2 || r.Unpack(all[2:]) != nil || len(r.Answer) != 1 {
		t.Errorf("read %x, %v", all, err)
	}
}

// TestTCPRepliesAreFlushed: the reply to a query does not wait for the rest of
// the next frame, which never arrives, or for a frame that is no query.
func TestTCPRepliesAreFlushed(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA)) // later queries are hits
	msg := pack(t, query("www.example.org.", dns.TypeA))
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	response := append([]byte(nil), frame...)
	response[4] |= 0x80
	for name, next := range map[string][]byte{"a part of the next query": frame[:7], "a response": response} {
		c := dialTCP(t, ts)
		if _, err := c.Write(append(append([]byte(nil), frame...), next...)); err != nil {
			t.Fatal(err)
		}
		r, err := (&dns.Conn{Conn: c}).ReadMsg()
		if err != nil || len(r.Answer) != 1 {
			t.Errorf("before %s: %v, %v", name, r, err)
		}
	}
}

// TestTCPHugeFrame: a frame longer than any query gets FORMERR, and the
// connection stays open.
func TestTCPHugeFrame(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	c := &dns.Conn{Conn: dialTCP(t, ts)}
	huge := append(pack(t, query("www.example.org.", dns.TypeA)), make([]byte, 60000)...)
	for _, f := range [][]byte{huge, pack(t, query("www.example.org.", dns.TypeA))} {
		if _, err := c.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{dns.RcodeFormatError, dns.RcodeSuccess} {
		r, err := c.ReadMsg()
		if err != nil || r.Rcode != want {
			t.Errorf("want %s, got %v, %v", dns.RcodeToString[want], r, err)
		}
	}
}

// TestShutdownAnswersWhatWasSent: Shutdown answers queries in the kernel's
// buffers, and those that clients have sent before they could know.
func TestShutdownAnswersWhatWasSent(t *testing.T) {
	for range 5 {
		ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
		var conns []*dns.Conn
		for range 20 {
			conns = append(conns, &dns.Conn{Conn: dialTCP(t, ts)})
		}
		for _, c := range conns {
			if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
		}
		if err := ts.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		for i, c := range conns {
			if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 1 {
				t.Errorf("connection %d: %v, %v", i, r, err)
			}
		}
	}
}

// TestCutAnswerOverTCP: TC cannot refer a TCP client to TCP, so it gets SERVFAIL.
func TestCutAnswerOverTCP(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		r := reply(t, m)
		r.Truncated = true
		return r, nil
	}))
	if r := ts.ask(t, "tcp", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure || r.Truncated {
		t.Errorf("TCP: %v", r)
	}
	if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); !r.Truncated {
		t.Errorf("UDP: %v", r)
	}
}

// TestApplyKeepsSockets changes the zones and an address under load. No query is
// lost.
func TestApplyKeepsSockets(t *testing.T) {
	mk := func() *Zone { return zone("example.org.", newCache(t), example(t)) }
	ts := newTestServer(t, Config{}, mk())
	second := nextAddr()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked atomic.Int64
	for _, network := range []string{"udp", "tcp"} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c := &dns.Client{Net: network, Timeout: 10 * time.Second}
				r, _, err := c.Exchange(query("www.example.org.", dns.TypeA), ts.addr.String())
				if err != nil || len(r.Answer) != 1 {
					t.Errorf("%s: %v, %v", network, r, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	for i := 0; i < 50 || asked.Load() < 200; i++ {
		b := []Binding{{Addr: ts.addr, Zones: []*Zone{mk()}}}
		if i%2 == 0 {
			b = append(b, Binding{Addr: second, Zones: []*Zone{mk()}})
		}
		if err := ts.Apply(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			break
		}
	}
	close(stop)
	wg.Wait()
}

// TestApplyIsAllOrNothing: if an address cannot be opened, nothing changes.
func TestApplyIsAllOrNothing(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	bad := netip.MustParseAddrPort("203.0.113.1:5300") // not an address of this host
	err := ts.Apply(t.Context(), []Binding{
		{Addr: nextAddr(), Zones: []*Zone{zone("example.com.", nil, example(t))}},
		{Addr: bad, Zones: []*Zone{zone("example.com.", nil, example(t))}},
	})
	if err == nil {
		t.Fatal("no error")
	}
	if got := ts.Addrs(); len(got) != 1 || got[0] != ts.addr {
		t.Errorf("addresses %v", got)
	}
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
}

// TestHandOver moves an address from one Server to another, as in a surge
// upgrade, under load. No query is lost.
func TestHandOver(t *testing.T) {
	mk := func() *Zone { return zone("example.org.", newCache(t), example(t)) }
	ts := newTestServer(t, Config{}, mk())
	var lost, asked atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c := &dns.Client{Timeout: 10 * time.Second}
				if _, _, err := c.Exchange(query("www.example.org.", dns.TypeA), ts.addr.String()); err != nil {
					lost.Add(1)
				}
				asked.Add(1)
			}
		})
	}
	old := ts.Server
	for range 10 {
		next := New(Config{Logger: old.log, Metrics: old.metrics, Now: time.Now, Workers: 2})
		if err := next.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: []*Zone{mk()}}}); err != nil {
			t.Fatal(err)
		}
		if err := old.Shutdown(t.Context()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		old = next
		for before := asked.Load(); asked.Load() < before+20; {
			time.Sleep(time.Millisecond) // until the new server has got queries
		}
	}
	close(stop)
	wg.Wait()
	if err := old.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if lost.Load() > 0 {
		t.Errorf("%d of %d queries lost", lost.Load(), asked.Load())
	}
}

func TestHitDoesNotAllocate(t *testing.T) {
	ts := newTestServer(t, Config{}, zone("example.org.", newCache(t), example(t)))
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	ts.ask(t, "udp", query("gone.example.org.", dns.TypeA))
	ts.mu.Lock()
	l := ts.listeners[ts.addr]
	ts.mu.Unlock()
	for _, name := range []string{"www.example.org.", "gone.example.org."} {
		msg := pack(t, query(name, dns.TypeA))
		q := Query{memory: new(lookupMemory)}
		out := make([]byte, 0, 2048)
		q.client = netip.MustParseAddrPort("127.0.0.1:1")
		if n := testing.AllocsPerRun(1000, func() {
			q.start = ts.clock()
			if _, ok := ts.tryHit(out, l, 0, &q, q.parse(msg)); !ok {
				t.Fatal("miss")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestLoopProbe(t *testing.T) {
	var ts *testServer
	z := zone("example.org.", nil, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		r, _, err := new(dns.Client).ExchangeContext(ctx, m, ts.addr.String())
		if err == nil && r.Rcode != dns.RcodeSuccess {
			err = errors.New("upstream failed")
		}
		return r, err
	})
	z.Loop = NewLoopProbe(z.Name)
	ok := zone("example.com.", nil, example(t))
	ok.Loop = NewLoopProbe(ok.Name)
	ts = newTestServer(t, Config{}, z, ok)
	if !z.Loop.Run(t.Context(), z) {
		t.Error("loop not detected")
	}
	if ok.Loop.Run(t.Context(), ok) {
		t.Error("loop detected without a loop")
	}
}

// newPrefetching makes a server for example.org with a fake clock. It prefetches
// names after two queries. The channel gets a value for each question to upstream.
func newPrefetching(t *testing.T) (*fakeClock, *testServer, <-chan struct{}) {
	t.Helper()
	now := &fakeClock{t: time.Now()}
	c := cache.New(cache.Options{Now: now.Now}).Cache("x", cache.Policy{
		Success:  cache.Class{MaxTTL: time.Hour},
		Prefetch: cache.Prefetch{Amount: 2, Duration: time.Minute, Percentage: 20},
	})
	asked := make(chan struct{}, 1000)
	ts := newTestServer(t, Config{Now: now.Now}, zone("example.org.", c, func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		asked <- struct{}{}
		return example(t)(ctx, m)
	}))
	return now, ts, asked
}

// TestRefreshPrefetches: a popular name is refreshed before it expires, and its
// clients never wait.
func TestRefreshPrefetches(t *testing.T) {
	now, ts, asked := newPrefetching(t)
	for range 3 {
		ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	}
	<-asked
	now.advance(55 * time.Second)
	ts.ask(t, "udp", query("www.example.org.", dns.TypeA))
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Error("not refreshed")
	}
}
