package upstream

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// seen is a query that arrived at a fake.
type seen struct {
	raw  []byte
	msg  *dns.Msg
	from netip.AddrPort
	tcp  bool
}

// fake is a scripted server, UDP and TCP on one port of a loopback address. No other
// socket uses that address, so the port is free while the server is down.
type fake struct {
	t    *testing.T
	addr netip.AddrPort
	pc   *net.UDPConn
	ln   net.Listener
	wg   sync.WaitGroup

	onUDP  func(q seen, send func([]byte)) // nil: silence
	onConn func(n int, c net.Conn)         // nth connection, from 0; nil: close it at once

	mu    sync.Mutex
	got   []seen
	conns int
	open  map[net.Conn]bool
}

// newFake starts a server that answers each query with 192.0.2.1. script may
// change that before the first query is read.
func newFake(t *testing.T, script func(*fake)) *fake {
	t.Helper()
	f := &fake{t: t, addr: netip.AddrPortFrom(nextAddr(), 0), open: make(map[net.Conn]bool)}
	f.onUDP = func(q seen, send func([]byte)) { send(answer(q.msg)) }
	f.onConn = func(_ int, c net.Conn) { f.serve(c, func(q seen) []byte { return answer(q.msg) }) }
	if script != nil {
		script(f)
	}
	f.listen()
	t.Cleanup(f.close)
	return f
}

var addrs atomic.Uint32

// nextAddr returns loopback addresses, each once in a process, and usually
// different ones in each process.
func nextAddr() netip.Addr {
	n := uint32(os.Getpid())<<10 + addrs.Add(1)
	return netip.AddrFrom4([4]byte{127, 64 | byte(n>>16)&63, byte(n >> 8), byte(n)})
}

// listen starts on f.addr, on any port if it has none yet.
func (f *fake) listen() {
	f.t.Helper()
	var err error
	for range 20 { // the port that TCP got may be in use for UDP
		if f.ln, err = net.Listen("tcp", f.addr.String()); err != nil {
			continue
		}
		bound := f.ln.Addr().(*net.TCPAddr).AddrPort()
		if f.pc, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(bound)); err == nil {
			f.addr = bound
			f.wg.Go(f.readUDP)
			f.wg.Go(f.accept)
			return
		}
		_ = f.ln.Close()
	}
	f.t.Fatal(err)
}

// close closes all sockets. The port is free afterwards.
func (f *fake) close() {
	_ = f.pc.Close()
	_ = f.ln.Close()
	f.mu.Lock()
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fake) endpoint() Endpoint { return Endpoint{Addr: f.addr} }

func (f *fake) queries() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seen(nil), f.got...)
}

func (f *fake) note(raw []byte, from netip.AddrPort, tcp bool) seen {
	q := seen{raw: raw, msg: new(dns.Msg), from: from, tcp: tcp}
	if err := q.msg.Unpack(raw); err != nil {
		f.t.Errorf("query does not decode: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, q)
	return q
}

func (f *fake) readUDP() {
	pc := f.pc
	for {
		buf := make([]byte, 4096)
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		q := f.note(buf[:n], from, false)
		if f.onUDP != nil {
			f.onUDP(q, func(b []byte) { _, _ = pc.WriteToUDPAddrPort(b, from) })
		}
	}
}

func (f *fake) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		n := f.conns
		f.conns++
		f.open[c] = true
		f.mu.Unlock()
		f.wg.Go(func() {
			defer c.Close()
			if f.onConn != nil {
				f.onConn(n, c)
			}
		})
	}
}

// serve answers the queries on c until the peer closes it or reply is nil.
func (f *fake) serve(c net.Conn, reply func(seen) []byte) {
	for {
		q, err := f.read(c)
		if err != nil {
			return
		}
		r := reply(q)
		if r == nil {
			return
		}
		if _, err := c.Write(frame(r)); err != nil {
			return
		}
	}
}

func (f *fake) read(c net.Conn) (seen, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return seen{}, err
	}
	raw := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, raw); err != nil {
		return seen{}, err
	}
	return f.note(raw, netip.AddrPort{}, true), nil
}

func frame(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// reply makes a reply to q, changes it and packs it.
func reply(q *dns.Msg, change func(*dns.Msg)) []byte {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	change(m)
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func withA(addr string) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.ParseIP(addr),
		})
	}
}

func answer(q *dns.Msg) []byte { return reply(q, withA("192.0.2.1")) }

func withRcode(rcode int) func(*dns.Msg) { return func(m *dns.Msg) { m.Rcode = rcode } }

// answering makes a script that replies to UDP with change applied.
func answering(change func(*dns.Msg)) func(*fake) {
	return func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) { send(reply(q.msg, change)) }
	}
}

// long is a time limit that only a failing test reaches.
const long = 20 * time.Second

// newTestPool makes a sequential pool with long time limits, and its metrics. It
// does not hedge, because tests count queries: on a slow machine a late reply must
// not cause another query.
func newTestPool(t *testing.T, change func(*PoolConfig), endpoints ...Endpoint) (*Pool, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	c := PoolConfig{
		From: ".", Endpoints: endpoints, Policy: PolicySequential, MaxFails: 2, NoHedge: true,
		Timeout: 2 * long, AttemptTimeout: long, Metrics: NewMetrics(reg),
	}
	if change != nil {
		change(&c)
	}
	p, err := NewPool(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p, reg
}

// start runs p and returns a function that stops it and waits for its end.
func start(t *testing.T, p *Pool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func asking(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	return m
}

// mustAnswer queries the address of name and returns the answer.
func mustAnswer(t *testing.T, p *Pool, name string) *dns.Msg {
	t.Helper()
	m, err := p.Exchange(t.Context(), asking(name, dns.TypeA))
	if err != nil {
		t.Fatalf("Exchange: %v", err)
	}
	if len(m.Answer) != 1 {
		t.Fatalf("answer has %d records:\n%v", len(m.Answer), m)
	}
	return m
}

// series sums the values of a metric over the series with the given labels, which
// are name, value pairs. found reports whether there are any.
func series(t *testing.T, g prometheus.Gatherer, name string, labels ...string) (sum float64, found bool) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range families {
		if mf.GetName() != name {
			continue
		}
		for _, m := range mf.GetMetric() {
			have := make(map[string]string)
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if fits {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum, found
}

func wantSeries(t *testing.T, g prometheus.Gatherer, want float64, name string, labels ...string) {
	t.Helper()
	if got, _ := series(t, g, name, labels...); got != want {
		t.Errorf("%s%v = %v, want %v", name, labels, got, want)
	}
}
