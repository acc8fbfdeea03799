package server

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// TestReplacedUnderTCP replaces the server of an address by another server while
// clients connect. Connections that the kernel accepts for the old server are
// answered. A connection that is half open at that time may be reset, see TestSurge
// of package test: up to 17 in all on a busy machine, and some 100 if the kernel's
// connections were not answered. The connection of a client that is idle for drainWait is closed.
func TestReplacedUnderTCP(t *testing.T) {
	const times, tolerated = 50, 40
	addr := nextAddr()
	old := serveAlso(t, addr)
	var asked, closed atomic.Int64
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		clients.Go(func() {
			for tick := time.NewTicker(time.Millisecond); ; {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				start := time.Now()
				err := askVersion(addr)
				asked.Add(1)
				switch {
				case err == nil:
				case !wasClosed(err):
					t.Error(err)
				case time.Since(start) < drainWait/2:
					closed.Add(1)
				}
			}
		})
	}
	for range times {
		next := serveAlso(t, addr)
		for until := asked.Load() + 10; asked.Load() < until; { // so that both get some
			if err := askVersion(addr); err != nil && !wasClosed(err) {
				t.Fatal(err)
			}
		}
		if err := old.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		old = next
	}
	close(done)
	clients.Wait()
	if err := old.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n := closed.Load(); n > tolerated {
		t.Errorf("%d of %d connections were reset in %d replacements", n, asked.Load(), times)
	}
}

func wasClosed(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, io.EOF)
}

// serveAlso starts a server on an address that another server may have, too.
func serveAlso(t *testing.T, addr netip.AddrPort) *Server {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry(), 1)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Workers: 1, Metrics: m, Logger: slog.New(slog.DiscardHandler), Now: time.Now})
	if err := s.Apply(t.Context(), []Binding{{Addr: addr}}); err != nil {
		t.Fatal(err)
	}
	return s
}

// askVersion sends a query over TCP that a server without zones answers.
func askVersion(addr netip.AddrPort) error {
	m := new(dns.Msg).SetQuestion("version.bind.", dns.TypeTXT)
	m.Question[0].Qclass = dns.ClassCHAOS
	c := dns.Client{Net: "tcp", Timeout: 20 * time.Second}
	_, _, err := c.Exchange(m, addr.String())
	return err
}
