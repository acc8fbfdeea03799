package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	defaultTimeout        = 4 * time.Second // stubs give up after 5 s
	defaultAttemptTimeout = 2 * time.Second
	defaultExpire         = 10 * time.Second
	defaultProbeInterval  = 500 * time.Millisecond
)

// Endpoint is one upstream server. It is comparable.
type Endpoint struct {
	Addr       netip.AddrPort
	TLS        bool
	ServerName string // to verify with TLS; empty: PoolConfig.TLS's, else the address
}

// Dialer opens connections; *net.Dialer is one. Networks are "udp" and "tcp".
// A connection over "udp" must be connected: it delivers datagrams of that
// address only.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// HealthCheck is how an endpoint that failed is probed.
type HealthCheck struct {
	Interval         time.Duration // 0: 500 ms
	RecursionDesired bool
	Domain           string // its NS records are asked for; empty: "."
}

// PoolConfig is one forward directive. Names are fully qualified.
type PoolConfig struct {
	From   string   // names outside are not ours; empty: "."
	Except []string // names at or below are not ours either, From itself excepted

	Endpoints []Endpoint // may be empty, see SetEndpoints
	// ForceTCP asks plain endpoints over TCP only. Otherwise UDP goes first,
	// so that PreferUDP changes nothing; ForceTCP wins over it.
	ForceTCP, PreferUDP bool
	Policy              Policy
	MaxFails            int           // failures in a row; 0: never taken for dead
	Expire              time.Duration // idle connections close after this; 0: 10 s
	HealthCheck         HealthCheck
	MaxConcurrent       int         // exchanges under way at once; 0: no limit
	TLS                 *tls.Config // for TLS endpoints; nil: defaults

	Timeout time.Duration // of an Exchange, all tries; 0: 4 s
	// AttemptTimeout is how long the reply to one query is waited for, over
	// one transport; 0: 2 s. Other queries may follow sooner, see Exchange.
	AttemptTimeout time.Duration

	// Patient asks again only after AttemptTimeout or an error, and never for a
	// reply that is merely late.
	Patient bool

	Dialer  Dialer           // nil: net.Dialer
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger     // nil: discarded
	Metrics *Metrics         // nil: not counted
}

// Pool asks the upstream servers of one forward. Its methods may be called
// concurrently.
type Pool struct {
	cfg     PoolConfig
	tls     *tls.Config // never modified
	order   func([]*server) []*server
	active  atomic.Int64
	hedges  budget
	buffers sync.Pool // of *[maxDatagram]byte

	servers atomic.Pointer[[]*server] // the slice is never modified

	mu       sync.Mutex
	stopped  bool
	suspects []*server     // to be probed; guarded by mu
	wake     chan struct{} // Run has something to look at; capacity 1
}

// NewPool checks c and makes its Pool. Nothing is sent until Exchange.
func NewPool(c PoolConfig) (*Pool, error) {
	order, err := c.Policy.order()
	if err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	c.setDefaults()
	p := &Pool{cfg: c, tls: baseTLS(c.TLS), order: order, wake: make(chan struct{}, 1)}
	p.buffers.New = func() any { return new([maxDatagram]byte) }
	p.hedges.thousandths.Store(hedgeSaved / 2)
	p.servers.Store(new([]*server))
	p.SetEndpoints(c.Endpoints)
	return p, nil
}

func (c *PoolConfig) check() error {
	for _, e := range c.Endpoints {
		if !usable(e) {
			return fmt.Errorf("upstream %v: not an address with a port", e.Addr)
		}
	}
	for _, name := range append([]string{c.From, c.HealthCheck.Domain}, c.Except...) {
		if _, ok := dns.IsDomainName(name); name != "" && !ok {
			return fmt.Errorf("%q is not a domain name", name)
		}
	}
	if c.MaxFails < 0 || c.MaxConcurrent < 0 {
		return errors.New("max_fails and max_concurrent must not be negative")
	}
	if c.Expire < 0 || c.Timeout < 0 || c.AttemptTimeout < 0 || c.HealthCheck.Interval < 0 {
		return errors.New("durations must not be negative")
	}
	return nil
}

func usable(e Endpoint) bool { return e.Addr.IsValid() && e.Addr.Port() != 0 }

func (c *PoolConfig) setDefaults() {
	c.From = orDefault(c.From, ".")
	c.Expire = orDefault(c.Expire, defaultExpire)
	c.Timeout = orDefault(c.Timeout, defaultTimeout)
	c.AttemptTimeout = min(orDefault(c.AttemptTimeout, defaultAttemptTimeout), c.Timeout)
	c.HealthCheck.Interval = orDefault(c.HealthCheck.Interval, defaultProbeInterval)
	c.HealthCheck.Domain = dns.Fqdn(orDefault(c.HealthCheck.Domain, "."))
	if c.Dialer == nil {
		c.Dialer = new(net.Dialer)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// covers reports whether questions for name are this pool's.
func (p *Pool) covers(name string) bool {
	if !dns.IsSubDomain(p.cfg.From, name) {
		return false
	}
	if dns.CountLabel(name) == dns.CountLabel(p.cfg.From) {
		return true // From itself, whatever Except says
	}
	for _, e := range p.cfg.Except {
		if dns.IsSubDomain(e, name) {
			return false
		}
	}
	return true
}

// SetEndpoints replaces the servers. Those that stay keep their connections
// and their health; those that go are closed once their exchanges end.
// Unusable and repeated endpoints are left out.
func (p *Pool) SetEndpoints(endpoints []Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := make(map[Endpoint]*server)
	for _, s := range *p.servers.Load() {
		old[s.Endpoint] = s
	}
	next := make([]*server, 0, len(endpoints))
	seen := make(map[Endpoint]bool)
	for _, e := range endpoints {
		if seen[e] || !usable(e) {
			continue
		}
		seen[e] = true
		s, kept := old[e]
		if !kept {
			s = p.newServer(e)
		}
		delete(old, e)
		next = append(next, s)
	}
	p.servers.Store(&next)
	for _, s := range old {
		s.retire()
	}
}

// Run probes servers that failed and closes idle connections until ctx is
// done, and returns when the probes have ended and the idle connections are
// closed. It always returns nil and must be called at most once.
//
// Exchange keeps working afterwards, so that exchanges which overlap with a
// reload succeed, but no connection is kept and no server is probed.
func (p *Pool) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		for _, s := range p.takeSuspects() {
			probes.Go(func() { p.probe(ctx, s) })
		}
		if wait, some := p.closeExpired(); some {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
	probes.Wait()
	p.stop()
	return nil
}

// nudge makes Run look for work.
func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// closeExpired closes connections and ports that were idle for too long and
// tells how long the next one has.
func (p *Pool) closeExpired() (wait time.Duration, some bool) {
	earliest := func(left time.Duration, ok bool) {
		if ok && (!some || left < wait) {
			wait, some = max(left, time.Millisecond), true
		}
	}
	for _, s := range *p.servers.Load() {
		now := p.cfg.Now()
		next, left := s.idle.expire(now)
		earliest(next.Sub(now), left)
		now = time.Now()
		next, left = s.ports.expire(now)
		earliest(next.Sub(now), left)
	}
	return wait, some
}

// stop closes what is idle and makes the servers keep nothing from now on.
func (p *Pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, s := range *p.servers.Load() {
		s.retire()
	}
}
