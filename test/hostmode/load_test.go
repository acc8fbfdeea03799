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
	// oneTry is how long dig waits for the reply to the one query that it
	// sends here.
	oneTry = 10 * time.Second
)

// load is a crowd of clients that look up until they are stopped.
type load struct {
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	finished chan struct{} // a look-up of ours has ended; missed if nobody waits
	libc     []*libcClient

	asked atomic.Int64

	mu      sync.Mutex
	longest time.Duration
	bad     []string // what failed, or took so long that a packet was lost
}

// libcClient is a process that looks up by getaddrinfo.
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

// dig asks server so many times a second, each time from a new port, once, by
// turns for a name that is cached and for a new one. name is of the load. It
// leaves times out where the machine does not keep up.
func (l *load) dig(ctx context.Context, from *lab.Netns, network, server, name string, rate int) {
	underWay := make(chan struct{}, max(rate/10, 2))
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
			case underWay <- struct{}{}:
			default:
				continue
			}
			l.wg.Go(func() {
				l.lookup(ctx, from, network, server, q)
				<-underWay
			})
		}
	})
}

func (l *load) lookup(ctx context.Context, from *lab.Netns, network, server, name string) {
	start := time.Now()
	err := ask(ctx, from, network, server, name)
	l.note(time.Since(start), fmt.Sprintf("%s %s by %s", server, name, network), err)
	select {
	case l.finished <- struct{}{}:
	default:
	}
}

// ask is one look-up. ctx cancels no query that is under way.
func ask(ctx context.Context, from *lab.Netns, network, server, name string) error {
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

func (l *load) note(took time.Duration, what string, err error) {
	l.asked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	if err != nil {
		l.bad = append(l.bad, fmt.Sprintf("failed after %v: %s: %v", took, what, err))
	}
}

// getaddrinfo looks up so many times a second as programs in a container do:
// with an /etc of their own.
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

// await waits until so many more look-ups of ours have ended.
func (l *load) await(t *testing.T, more int) {
	t.Helper()
	for range more {
		select {
		case <-l.finished:
		case <-t.Context().Done():
			t.Fatal("no look-ups any more")
		}
	}
}

// stop ends the load and reports what was lost. Without a loss the longest
// look-up tells how near it was.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.wg.Wait()
	for _, c := range l.libc {
		l.collect(t, c)
	}
	t.Logf("%d look-ups, the longest took %v, %d failed or had to ask again", l.asked.Load(), l.longest, len(l.bad))
	for i, s := range l.bad {
		if i == 20 {
			t.Errorf("and %d more", len(l.bad)-i)
			break
		}
		t.Error(s)
	}
}

// collect ends a client and takes its result into account.
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
			l.asked.Add(count)
			l.longest = max(l.longest, time.Duration(longest)*time.Millisecond)
			t.Logf("%s: %d look-ups, the longest took %d ms", c.name, count, longest)
			return
		}
	}
	t.Errorf("%s did not finish", c.name)
}
