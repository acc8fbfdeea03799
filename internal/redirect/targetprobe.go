package redirect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/bpf"
)

const (
	// fewPods is how many pods a round queries from at first. If a target answers none
	// of them, the round goes on up to mostPods: policies of a few pods must not decide
	// for the node.
	fewPods, mostPods = 3, 20
	// reachInterval is the time between two checks. With the time that a check takes,
	// nodens notices a loss within 30 s. lostInterval is the time between two checks
	// while pods do not reach a target.
	reachInterval, lostInterval = 15 * time.Second, 10 * time.Second
)

// errUnreachable means that pods reach the fallbacks and not the target.
var errUnreachable = errors.New("pods get no answer from the target: let them reach it through host firewalls and policies, or set another target")

// targetProbe queries targets and fallbacks from pods' network namespaces.
type targetProbe struct {
	kubepods  string // directory
	services  []bpf.Service
	fallbacks func(vip netip.AddrPort) []netip.AddrPort
	blocked   func() error // see Config.InputBlocked
}

// check returns errUnreachable if redirection would lose lookups: twice in a row, no
// pod was answered by a target, and one was by a fallback. If it may not enter pods,
// it returns errUnreachable if netfilter drops, else another error. Without pods it
// returns nil.
func (p targetProbe) check(ctx context.Context) error {
	const again = 2 * time.Second
	err := p.round(ctx)
	if errors.Is(err, errUnreachable) {
		if !pause(ctx, again) {
			return nil
		}
		err = p.round(ctx)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil && !errors.Is(err, errUnreachable) {
		if blocked := p.blocked(); blocked != nil {
			return fmt.Errorf("%w: %w", errUnreachable, blocked)
		}
	}
	return err
}

// round queries until each target has answered a pod.
func (p targetProbe) round(ctx context.Context) error {
	result := newReachResult(p.services)
	var batch []podSockets
	flush := func() {
		result.add(ctx, batch)
		batch = nil
	}
	pods := 0
	var noEntry error
	err := bpf.PodNetworks(p.kubepods, "/proc", func(netns *os.File) bool {
		pods++
		var sockets []podSockets
		sockets, noEntry = p.open(netns)
		batch = append(batch, sockets...)
		if noEntry != nil {
			return false
		}
		if pods == fewPods {
			flush()
		}
		return pods < mostPods && !result.complete() && ctx.Err() == nil
	})
	flush()
	if noEntry == nil && pods > 0 {
		err = nil // some namespaces cannot be opened
	}
	if err = errors.Join(noEntry, err); err != nil {
		return err
	}
	return result.verdict()
}

// podSockets are sockets in a pod's network namespace.
type podSockets struct {
	service  int // index
	target   net.Conn
	fallback []net.Conn
}

// open opens sockets to the services whose family the pod has.
func (p targetProbe) open(netns *os.File) (all []podSockets, err error) {
	var to []netip.AddrPort
	var of []int // the service of each, whose target comes first
	for i, svc := range p.services {
		for _, a := range append([]netip.AddrPort{svc.Target}, p.fallbacks(svc.VIP)...) {
			to, of = append(to, a), append(of, i)
		}
	}
	sockets, err := dialInside(netns, to...)
	if err != nil {
		return nil, err
	}
	skip := -1 // the pod has no address of this service's family
	for i, s := range sockets {
		switch isTarget := i == 0 || of[i] != of[i-1]; {
		case isTarget && errors.Is(s.err, syscall.EADDRNOTAVAIL):
			skip = of[i]
		case isTarget:
			all = append(all, podSockets{service: of[i], target: s.Conn})
		case s.err == nil && of[i] != skip:
			last := &all[len(all)-1]
			last.fallback = append(last.fallback, s.Conn)
		case s.err == nil:
			_ = s.Close()
		}
	}
	return all, nil
}

// reachResult is what a round has found, by service.
type reachResult struct {
	services []bpf.Service
	asked    []int // pods
	target   []bool
	fallback []bool
}

func newReachResult(services []bpf.Service) *reachResult {
	n := len(services)
	return &reachResult{services: services, asked: make([]int, n), target: make([]bool, n), fallback: make([]bool, n)}
}

// add queries the targets, and the fallbacks of those that do not answer: it must not
// load the cluster's DNS on a healthy node. It closes the sockets.
func (r *reachResult) add(ctx context.Context, batch []podSockets) {
	var targets asking
	for _, s := range batch {
		r.asked[s.service]++
		if s.target != nil {
			targets.ask(ctx, s.target, &r.target[s.service])
		}
	}
	targets.wait()
	var fallbacks asking
	for _, s := range batch {
		for _, c := range s.fallback {
			if r.target[s.service] {
				_ = c.Close()
				continue
			}
			fallbacks.ask(ctx, c, &r.fallback[s.service])
		}
	}
	fallbacks.wait()
}

// asking is a set of queries at the same time.
type asking struct {
	wg sync.WaitGroup
	mu sync.Mutex // guards the results
}

// ask queries by c and closes it. answered becomes true if there is a reply.
func (a *asking) ask(ctx context.Context, c net.Conn, answered *bool) {
	a.wg.Go(func() {
		ok := answers(ctx, c)
		a.mu.Lock()
		defer a.mu.Unlock()
		*answered = *answered || ok
	})
}

func (a *asking) wait() { a.wg.Wait() }

// complete reports whether each target has answered some pod.
func (r *reachResult) complete() bool {
	for i := range r.services {
		if !r.target[i] {
			return false
		}
	}
	return true
}

func (r *reachResult) verdict() error {
	for i, svc := range r.services {
		if !r.target[i] && r.fallback[i] {
			return fmt.Errorf("target %v, %d pods: %w", svc.Target, r.asked[i], errUnreachable)
		}
	}
	return nil
}

// answers reports whether there is any reply to a query on c, which it closes.
func answers(ctx context.Context, c net.Conn) bool {
	const tries = 2
	defer c.Close()
	m := new(dns.Msg).SetQuestion("id.server.", dns.TypeTXT)
	m.Question[0].Qclass = dns.ClassCHAOS
	for range tries {
		if _, err := ask(ctx, c, m); err == nil {
			return true
		}
	}
	return false
}

// ask waits for a reply for a second, or until ctx is done. Then it may close c.
func ask(ctx context.Context, c net.Conn, m *dns.Msg) (*dns.Msg, error) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // interrupts a read
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	return exchange(&dns.Conn{Conn: c}, m)
}
