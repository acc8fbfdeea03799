package redirect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/tick"
)

const (
	// fallbackInterval is the mean time between two rounds. Every node sends two or
	// more queries in each, so a cluster of 5,000 nodes sends 1,000 queries a second
	// to its DNS.
	fallbackInterval = 10 * time.Second
	// newFallbackDelay is the longest time until nodens asks new fallbacks. It is random,
	// because all nodes learn of them at the same time.
	newFallbackDelay = 5 * time.Second
	// maxKnown is the number of fallbacks of a service that are checked, at most.
	maxKnown = 4 * bpf.MaxFallbacks
)

// health is what is known about a fallback.
type health int

const (
	unasked health = iota
	answering
	silent    // over UDP
	silentTCP // it may answer over UDP
)

func (h health) down() bool { return h == silent || h == silentTCP }

// fallbacks keeps those that do not answer out of the kernel's map. Its methods are
// safe for concurrent use.
type fallbacks struct {
	kernel *bpf.Redirect
	status *status
	log    *slog.Logger
	name   string               // that is queried
	free   func(netip.AddrPort) // closes pods' sockets that are connected to it
	added  chan struct{}        // signals fallbacks that are not checked yet

	mu     sync.Mutex                          // guards what follows
	known  map[netip.AddrPort][]netip.AddrPort // by VIP
	health map[netip.AddrPort]health
	full   bool // maxKnown was reached, and reported
}

// newFallbacks returns the fallbacks of services. Those that a predecessor pinned count
// as answering, because the predecessor checked them.
func newFallbacks(s *session, services []bpf.Service, pinned []bpf.Pinned) *fallbacks {
	f := &fallbacks{
		status: s.status, log: s.cfg.Logger, name: dns.Fqdn(s.plan.ClusterDomain),
		free:   func(a netip.AddrPort) { s.sockets.free(a, "the fallback does not answer") },
		added:  make(chan struct{}, 1),
		known:  make(map[netip.AddrPort][]netip.AddrPort),
		health: make(map[netip.AddrPort]health),
	}
	for _, dir := range pinned {
		for _, old := range dir.Services {
			for _, a := range old.Fallbacks {
				f.health[a] = answering
			}
		}
	}
	for _, svc := range services {
		f.known[svc.VIP] = f.bound(svc.Fallbacks)
	}
	return f
}

// adopt is called once, after the kernel's maps are open.
func (f *fallbacks) adopt(kernel *bpf.Redirect) {
	f.kernel = kernel
	for _, svc := range kernel.Services() {
		if len(f.known[svc.VIP]) == 0 {
			f.known[svc.VIP] = svc.Fallbacks // a predecessor's
		}
	}
}

// in returns services with the fallbacks that can be used.
func (f *fallbacks) in(services []bpf.Service) []bpf.Service {
	services = slices.Clone(services)
	for i := range services {
		services[i].Fallbacks = f.of(services[i].VIP)
	}
	return services
}

// set replaces the fallbacks of the service at vip. New ones are used after they
// have answered, or while no other answers.
func (f *fallbacks) set(vip netip.AddrPort, endpoints []netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[vip] = f.bound(endpoints)
	all := f.all()
	for a := range f.health {
		if !slices.Contains(all, a) {
			delete(f.health, a)
			f.status.fallback.DeleteLabelValues(a.String())
		}
	}
	select {
	case f.added <- struct{}{}:
	default:
	}
	return f.put(vip)
}

// bound returns at most maxKnown of endpoints. It prefers those that answer. It needs
// mu.
func (f *fallbacks) bound(endpoints []netip.AddrPort) []netip.AddrPort {
	if len(endpoints) <= maxKnown {
		return endpoints
	}
	if !f.full {
		f.full = true
		f.log.Info("there are more fallbacks than nodens uses and checks", "fallbacks", len(endpoints), "limit", maxKnown)
	}
	answers := func(a netip.AddrPort) bool { return f.health[a] == answering }
	others := slices.DeleteFunc(slices.Clone(endpoints), answers)
	some := slices.DeleteFunc(slices.Clone(endpoints), func(a netip.AddrPort) bool { return !answers(a) })
	return append(some, others...)[:maxKnown]
}

// of returns the fallbacks that the kernel has for the service at vip.
func (f *fallbacks) of(vip netip.AddrPort) []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.usable(vip)
}

// usable returns at most bpf.MaxFallbacks of those that answer. If none answers, it
// returns some that nodens has not asked yet. If it has asked all, it returns some of
// all, because pods may reach them. It needs mu.
func (f *fallbacks) usable(vip netip.AddrPort) []netip.AddrPort {
	some := f.known[vip]
	for _, want := range []health{answering, unasked} {
		with := slices.DeleteFunc(slices.Clone(f.known[vip]), func(a netip.AddrPort) bool { return f.health[a] != want })
		if len(with) > 0 {
			some = with
			break
		}
	}
	return some[:min(len(some), bpf.MaxFallbacks)]
}

// put needs mu.
func (f *fallbacks) put(vip netip.AddrPort) error { return f.kernel.SetFallbacks(vip, f.usable(vip)) }

// all returns the fallbacks of all services. It needs mu.
func (f *fallbacks) all() []netip.AddrPort {
	var all []netip.AddrPort
	for _, some := range f.known {
		all = append(all, some...)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// split returns the fallbacks of all services that the kernel has, and the others.
func (f *fallbacks) split() (used, spare []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for vip := range f.known {
		used = append(used, f.usable(vip)...)
	}
	slices.SortFunc(used, netip.AddrPort.Compare)
	used = slices.Compact(used)
	return used, slices.DeleteFunc(f.all(), func(a netip.AddrPort) bool { return slices.Contains(used, a) })
}

// run asks the fallbacks that the kernel has, and then a few of all in turn, until ctx
// is done.
func (f *fallbacks) run(ctx context.Context) {
	used, _ := f.split()
	f.ask(ctx, used, "udp")
	for r := newRounds(); f.wait(ctx); {
		udp, tcp := r.next(f.split())
		f.ask(ctx, udp, "udp")
		f.ask(ctx, tcp, "tcp")
	}
}

// wait waits for the next round. Meanwhile it queries new fallbacks. It returns false when
// ctx is done.
func (f *fallbacks) wait(ctx context.Context) bool {
	jitter := time.Duration(rand.Int64N(int64(fallbackInterval / 5)))
	due := tick.New()
	defer due.Stop()
	due.Reset(fallbackInterval*9/10 + jitter)
	var soon <-chan time.Time
	for {
		if soon == nil && len(f.list(unasked)) > 0 {
			soon = time.After(rand.N(newFallbackDelay))
		}
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-f.added:
		case <-soon:
			f.ask(ctx, f.list(unasked), "udp")
			soon = nil
		}
	}
}

// list returns the fallbacks of all services that have the given health.
func (f *fallbacks) list(want health) []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(f.all(), func(a netip.AddrPort) bool { return f.health[a] != want })
}

// ask queries some at the same time, and acts on those that do not answer. It uses TCP
// for those that did not answer over TCP.
func (f *fallbacks) ask(ctx context.Context, some []netip.AddrPort, network string) {
	var wg sync.WaitGroup
	noTCP := f.list(silentTCP)
	for _, a := range some {
		network := network
		if slices.Contains(noTCP, a) {
			network = "tcp"
		}
		wg.Go(func() {
			err := askFallback(ctx, network, a, f.name)
			if ctx.Err() == nil {
				f.note(a, network, err)
			}
		})
	}
	wg.Wait()
}

// askFallback tries three times, since a single lost packet does not count.
func askFallback(ctx context.Context, network string, a netip.AddrPort, name string) (err error) {
	const tries, wait = 3, time.Second
	for range tries {
		again := time.Now().Add(wait)
		if err = askOnce(ctx, network, a, name); err == nil || !pause(ctx, time.Until(again)) {
			return err
		}
	}
	return err
}

func askOnce(ctx context.Context, network string, a netip.AddrPort, name string) error {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, network, a.String())
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := ask(ctx, c, new(dns.Msg).SetQuestion(name, dns.TypeSOA))
	if err == nil && (r.Rcode == dns.RcodeServerFailure || r.Rcode == dns.RcodeRefused) {
		err = fmt.Errorf("response %s", dns.RcodeToString[r.Rcode])
	}
	return err
}

// note changes the kernel's map after a change.
func (f *fallbacks) note(a netip.AddrPort, network string, err error) {
	now := answering
	if err != nil {
		now = silent
		if network == "tcp" {
			now = silentTCP
		}
	}
	was, putErr := f.change(a, now)
	if putErr != nil {
		f.status.error("changing the fallbacks failed", "error", putErr)
	}
	switch {
	case now.down() && !was.down():
		f.log.Warn("a fallback does not answer: it is not used", "fallback", a, "network", network, "error", err)
		f.free(a)
	case now == answering && was.down():
		f.log.Info("a fallback answers again", "fallback", a)
	}
}

// change returns the health before. It ignores a fallback that is no longer known, so that
// its metric does not stay.
func (f *fallbacks) change(a netip.AddrPort, now health) (was health, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.all(), a) {
		return now, nil
	}
	up := 1.0
	if now.down() {
		up = 0
	}
	f.status.fallback.WithLabelValues(a.String()).Set(up)
	if was = f.health[a]; was == now {
		return now, nil
	}
	f.health[a] = now
	var errs []error
	for vip, some := range f.known {
		if slices.Contains(some, a) {
			errs = append(errs, f.put(vip))
		}
	}
	return was, errors.Join(errs...)
}
