package server

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// timeoutServer serves example.org with timeouts of TCP.
func timeoutServer(t *testing.T, timeouts TCPTimeouts) *testServer {
	ts := newTestServer(t, Config{})
	z := zone("example.org.", newCache(t), example(t))
	if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: []*Zone{z}, TCP: timeouts}}); err != nil {
		t.Fatal(err)
	}
	return ts
}

func dialDNS(t *testing.T, ts *testServer) *dns.Conn {
	t.Helper()
	c, err := dns.DialTimeout("tcp", ts.addr.String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func TestMaxTCPQueries(t *testing.T) {
	c := dialDNS(t, timeoutServer(t, TCPTimeouts{Queries: 3}))
	for i := range 3 {
		if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 1 {
			t.Fatalf("query %d: %v, %v", i, r, err)
		}
	}
	wantClosed(t, c)
}

// TestTCPTimeouts waits for the connection to be closed, before and after the
// first query. Only one of Read and Idle is short, so only that one can close
// it.
func TestTCPTimeouts(t *testing.T) {
	const never = time.Hour
	c := dialDNS(t, timeoutServer(t, TCPTimeouts{Read: 50 * time.Millisecond, Idle: never}))
	wantClosed(t, c)
	c = dialDNS(t, timeoutServer(t, TCPTimeouts{Read: never, Idle: 50 * time.Millisecond}))
	if err := c.WriteMsg(query("www.example.org.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReadMsg(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, c)
}

// wantClosed waits until the server has closed the connection.
func wantClosed(t *testing.T, c *dns.Conn) {
	t.Helper()
	var ne net.Error
	if _, err := c.ReadMsg(); err == nil || errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("the connection is open: %v", err)
	} else if !errors.Is(err, io.EOF) {
		t.Logf("closed with %v", err)
	}
}
