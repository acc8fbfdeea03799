package hostmode

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	// oneTry is the timeout of a query of dig, which sends each only once.
	oneTry = 10 * time.Second
)

// load is a set of clients that do lookups until stop.
type load struct {
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	finished chan struct{} // receives when a lookup of dig has ended and wait runs
	libc     []*libcClient

	lookups atomic.Int64

	mu      sync.Mutex
	longest time.Duration
	bad     []string // lookups that failed, or took so long that a packet must have been lost
}

// libcClient is a process that calls getaddrinfo.
type libcClient struct {
	*lab.Process
	name string
}

func startLoad(t *testing.T) (*load, context.Context) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, finished: make(chan struct{})}
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	return l, ctx
}

// dig queries server rate times a second, each time once and from a new port,
// alternately for a cached and for a new name below name. It skips queries if the
// machine is too slow.
func (l *load) dig(ctx context.Context, from *lab.Netns, network, server, name string, rate int) {
	inFlight := make(chan struct{}, max(rate/10, 2))
	l.wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			q := fmt.Sprintf("n%d.%s.example.", i, name)
			if i%2 == 0 {
				q = "popular." + name + ".example."
			}
			select {
			case inFlight <- struct{}{}:
			default:
				continue
			}
			l.wg.Go(func() {
				l.lookup(ctx, from, network, server, q)
				<-inFlight
			})
		}
	})
}

func (l *load) lookup(ctx context.Context, from *lab.Netns, network, server, name string) {
	start := time.Now()
	err := query(ctx, from, network, server, name)
	l.record(time.Since(start), fmt.Sprintf("%s %s by %s", server, name, network), err)
	select {
	case l.finished <- struct{}{}:
	default:
	}
}

// query is one lookup. ctx does not cancel a query in flight.
func query(ctx context.Context, from *lab.Netns, network, server, name string) error {
	c, err := from.DialContext(context.WithoutCancel(ctx), network, server)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(oneTry)); err != nil {
		return err
	}
	return exchange(c, name)
}

func exchange(c net.Conn, name string) error {
	dc := &dns.Conn{Conn: c}
	if err := dc.WriteMsg(lab.Query(name, dns.TypeA)); err != nil {
		return err
	}
	r, err := dc.ReadMsg()
	if err != nil {
		return err
	}
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{outsideDNS}) && !slices.Equal(got, []string{backend}) {
		return fmt.Errorf("%s %v", dns.RcodeToString[r.Rcode], got)
	}
	return nil
}

func (l *load) record(took time.Duration, what string, err error) {
	l.lookups.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	if err != nil {
		l.bad = append(l.bad, fmt.Sprintf("failed after %v: %s: %v", took, what, err))
	}
}

// getaddrinfo does rate lookups a second by program, with its own /etc as in a
// container.
func (l *load) getaddrinfo(t *testing.T, from *lab.Netns, program, server string, rate int) {
	t.Helper()
	name := fmt.Sprintf("%s-%s-%s.example", filepath.Base(program), from.Name, strings.ReplaceAll(server, ".", "-"))
	const threads = 5
	c := &libcClient{name: name, Process: lab.Command{
		Netns: from, Args: []string{program, name, fmt.Sprint(rate), fmt.Sprint(threads), "popular." + name}, Binds: lab.Etc(t, "nameserver "+server+"\n"),
	}.Start(t)}
	c.Out.WaitFor(t, 0, `^started$`)
	l.libc = append(l.libc, c)
}

// wait waits until dig has ended that many more lookups.
func (l *load) wait(t *testing.T, count int) {
	t.Helper()
	for range count {
		select {
		case <-l.finished:
		case <-t.Context().Done():
			t.Fatal("the test ended without further lookups")
		}
	}
}

// stop ends the load and reports failed lookups. If there are none, the longest
// lookup shows the margin.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.wg.Wait()
	for _, c := range l.libc {
		l.collect(t, c)
	}
	t.Logf("%d lookups, the longest took %v, %d failed or were retried", l.lookups.Load(), l.longest, len(l.bad))
	for i, s := range l.bad {
		if i == 20 {
			t.Errorf("and %d more", len(l.bad)-i)
			break
		}
		t.Error(s)
	}
}

// collect ends a client and adds its result.
func (l *load) collect(t *testing.T, c *libcClient) {
	t.Helper()
	c.Signal(t, syscall.SIGTERM)
	if status := c.Wait(t); status != 0 {
		t.Errorf("%s: status %d\n%s", c.name, status, c.Err.Text())
	}
	for line := range strings.Lines(c.Out.Text()) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "failed", "slow":
			l.bad = append(l.bad, c.name+": "+line)
		case "round":
			var count, failed, longest int64
			if _, err := fmt.Sscan(rest, &count, &failed, &longest); err != nil || count == 0 {
				t.Errorf("%s: %q: %v", c.name, line, err)
			}
			l.lookups.Add(count)
			l.longest = max(l.longest, time.Duration(longest)*time.Millisecond)
			t.Logf("%s: %d lookups, the longest took %d ms", c.name, count, longest)
			return
		}
	}
	t.Errorf("%s did not finish", c.name)
}
