package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// tcpLimited is a server whose queries for TXT wait for release.
type tcpLimited struct {
	*testServer
	t       *testing.T
	release chan struct{}
}

func newTCPLimited(t *testing.T, connections, perClient int) *tcpLimited {
	s := &tcpLimited{t: t, release: make(chan struct{})}
	limits := TCPLimits{Connections: connections, PerClient: perClient, Idle: time.Hour, Write: time.Hour}
	s.testServer = newTestServer(t, Config{TCP: limits}, zone("example.org.", newCache(t), func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		if m.Question[0].Qtype == dns.TypeTXT {
			<-s.release
		}
		return example(t)(ctx, m)
	}))
	return s
}

// dial connects from 127.0.0.CLIENT and waits until the server has accepted.
func (s *tcpLimited) dial(client byte) *dns.Conn {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, client)}, Timeout: 20 * time.Second}
	c, err := d.Dial("tcp", s.addr.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	conn := &dns.Conn{Conn: c}
	s.wait("accepted", func(t *tcpListener) bool {
		for c := range t.conns {
			if c.client.String() == conn.LocalAddr().String() {
				return true
			}
		}
		return s.metrics.tcpRejected.Load() > 0
	})
	return conn
}

// wait waits until the connections are as cond says. They send no signal.
func (s *tcpLimited) wait(what string, cond func(*tcpListener) bool) {
	s.t.Helper()
	l := (*s.tcpListeners.Load())[0]
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		ok := cond(l)
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("not %s", what)
		}
	}
}

// answers sends a query, reads the reply and waits until no connection reads or
// resolves a query.
func (s *tcpLimited) answers(c *dns.Conn) {
	s.t.Helper()
	if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
		s.t.Fatal(err)
	}
	if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 1 {
		s.t.Fatalf("from %v: %v, %v", c.LocalAddr(), r, err)
	}
	s.waitReading(0)
	s.wait("idle", func(t *tcpListener) bool {
		for c := range t.conns {
			if len(c.slots) > 0 {
				return false
			}
		}
		return true
	})
}

// waitReading waits until n connections read or resolve a query.
func (s *tcpLimited) waitReading(n int) {
	s.t.Helper()
	s.wait(fmt.Sprint(n, " reading"), func(t *tcpListener) bool {
		reading := 0
		for c := range t.conns {
			reading += boolIndex(c.reading.Load())
		}
		return reading == n
	})
}

// TestTCPLimit: a connection above the limit replaces the one that is idle for
// longest. It replaces none on which a query is being resolved.
func TestTCPLimit(t *testing.T) {
	s := newTCPLimited(t, 2, 2)
	a, b := s.dial(1), s.dial(2)
	s.answers(b)
	s.answers(a)
	c := s.dial(3)
	wantClosed(t, b)
	s.answers(c)
	s.answers(a)
	if n := s.metrics.tcpEvicted.Load(); n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
	for _, busy := range []*dns.Conn{a, c} {
		if err := busy.WriteMsg(query("www.example.org.", dns.TypeTXT)); err != nil {
			t.Fatal(err)
		}
	}
	s.wait("resolving", func(t *tcpListener) bool {
		for c := range t.conns {
			if len(c.slots) == 0 {
				return false
			}
		}
		return true
	})
	wantClosed(t, s.dial(4))
	if n := s.metrics.tcpRejected.Load(); n != 1 {
		t.Errorf("%d rejected, want 1", n)
	}
	close(s.release)
	for _, busy := range []*dns.Conn{a, c} {
		if _, err := busy.ReadMsg(); err != nil {
			t.Errorf("from %v: %v", busy.LocalAddr(), err)
		}
	}
}

// TestTCPLimitPerClient: a client at its limit replaces its own connections. The
// count follows connections that end and connections that are replaced.
func TestTCPLimitPerClient(t *testing.T) {
	s := newTCPLimited(t, 100, 2)
	other := s.dial(1)
	s.answers(other)
	for range 5 {
		c := s.dial(2)
		s.answers(c)
		_ = c.Close()
		s.wait("removed", func(t *tcpListener) bool { return len(t.conns) == 1 })
	}
	conns := []*dns.Conn{s.dial(2), s.dial(2)}
	for _, c := range conns {
		s.answers(c)
	}
	if n := s.metrics.tcpEvicted.Load(); n != 0 {
		t.Fatalf("%d connections replaced within the limit", n)
	}
	for i := range 5 {
		conns = append(conns, s.dial(2))
		wantClosed(t, conns[i])
		s.answers(conns[i+1])
		s.answers(conns[i+2])
	}
	s.answers(other)
	for _, c := range append(conns, other) {
		_ = c.Close()
	}
	s.wait("removed", func(t *tcpListener) bool { return len(t.conns)+len(t.clients) == 0 })
}

// TestTCPGreedyClients: two clients that hold all connections make room for
// others, which keep theirs.
func TestTCPGreedyClients(t *testing.T) {
	s := newTCPLimited(t, 8, 4)
	oldest := s.dial(9)
	s.answers(oldest)
	var held []*dns.Conn
	for i := range 8 {
		held = append(held, s.dial(byte(1+i%2)))
	}
	others := []*dns.Conn{oldest}
	for client := range byte(3) {
		c := s.dial(3 + client)
		s.answers(c)
		others = append(others, c)
	}
	for _, c := range others {
		s.answers(c)
	}
	for i, c := range held[:4] {
		wantClosed(t, c)
		if t.Failed() {
			t.Fatalf("held connection %d", i)
		}
	}
	for _, c := range held[4:] {
		s.answers(c)
	}
}

// TestTCPSlowQuery: a connection that has sent a part of a query is closed after
// the client's idle ones.
func TestTCPSlowQuery(t *testing.T) {
	s := newTCPLimited(t, 100, 2)
	slow := s.dial(1)
	msg := pack(t, query("www.example.org.", dns.TypeA))
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	if _, err := slow.Conn.Write(frame[:5]); err != nil {
		t.Fatal(err)
	}
	s.waitReading(1)
	idle := s.dial(1)
	next := s.dial(1)
	wantClosed(t, idle)
	if _, err := next.Conn.Write(frame[:5]); err != nil {
		t.Fatal(err)
	}
	s.waitReading(2)
	last := s.dial(1)
	wantClosed(t, slow)
	if _, err := next.Conn.Write(frame[5:]); err != nil {
		t.Fatal(err)
	}
	if _, err := next.ReadMsg(); err != nil {
		t.Error(err)
	}
	s.answers(last)
}

// TestTCPFiles: when file descriptors run out, the connection that is idle for
// longest is closed, on any address. One at a time is.
func TestTCPFiles(t *testing.T) {
	s := newTCPLimited(t, 100, 100)
	if s.makeRoomForFile() {
		t.Error("made room without a connection")
	}
	a, b := s.dial(1), s.dial(2)
	zones := []*Zone{zone("example.org.", newCache(t), example(t))}
	if err := s.Apply(t.Context(), []Binding{{Addr: s.addr, Zones: zones}, {Addr: nextAddr(), Zones: zones}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*dns.Conn{a, b} {
		if !s.makeRoomForFile() {
			t.Error("made no room")
		}
		wantClosed(t, c)
	}
	if s.makeRoomForFile() {
		t.Error("made room after all connections")
	}
}
