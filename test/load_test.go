package test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// load is a number of clients that send queries until they are stopped. They send
// each query once and wait for its reply.
type load struct {
	c      *cluster
	cancel context.CancelFunc
	wg     sync.WaitGroup
	asked  atomic.Int64

	mu   sync.Mutex
	errs []error
}

// startLoad starts clients that alternate between new names and one cached name:
// over UDP from a new port each time, over TCP perConn times on a connection. The
// upstream must answer as startHashed does.
func startLoad(t *testing.T, c *cluster, udp, tcp, perConn int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{c: c, cancel: cancel}
	for i := range udp {
		l.wg.Go(func() { l.run(ctx, "udp", i, 1) })
	}
	for i := range tcp {
		l.wg.Go(func() { l.run(ctx, "tcp", udp+i, perConn) })
	}
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l
}

// run is one client. It opens a new connection after some queries.
func (l *load) run(ctx context.Context, network string, client, perConn int) {
	for n := 0; ctx.Err() == nil; {
		conn, err := l.c.pod.DialContext(ctx, network, localAddr)
		if err != nil {
			l.fail(ctx, fmt.Errorf("dial %s: %w", network, err))
			continue
		}
		for range perConn {
			n++
			if !l.ask(ctx, conn, network, client, n) {
				break
			}
		}
		_ = conn.Close()
	}
}

// ask sends one query and reports whether the connection can be used again.
func (l *load) ask(ctx context.Context, conn net.Conn, network string, client, n int) bool {
	name := fmt.Sprintf("n%d.client%d.example.", n, client)
	if n%2 == 1 {
		name = "popular.example."
	}
	r, err := lab.AskOn(conn, lab.Query(name, dns.TypeA))
	l.asked.Add(1)
	if err == nil && !slices.Equal(lab.Data(r, dns.TypeA), []string{hashed(name)}) {
		err = fmt.Errorf("answer %v", r)
	}
	if err != nil {
		l.fail(ctx, fmt.Errorf("%s over %s: %w", name, network, err))
	}
	return err == nil && ctx.Err() == nil
}

func (l *load) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// wait waits until the given number of further queries have been answered.
func (l *load) wait(t *testing.T, more int64) {
	t.Helper()
	for until := l.asked.Load() + more; l.asked.Load() < until; {
		// One query at a time from here serves as a clock.
		l.c.pod.Ask(t, "udp", localAddr, lab.Query("popular.example.", dns.TypeA))
	}
}

// stop ends the load and returns the number of queries. It reports the failures
// if there are more than tolerated.
func (l *load) stop(t *testing.T, tolerated int) int64 {
	t.Helper()
	l.cancel()
	l.wg.Wait()
	if len(l.errs) <= tolerated {
		return l.asked.Load()
	}
	for i, err := range l.errs {
		if i == 10 {
			t.Errorf("and %d more", len(l.errs)-i)
			break
		}
		t.Error(err)
	}
	return l.asked.Load()
}
