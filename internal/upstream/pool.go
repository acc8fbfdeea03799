package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/miekg/dns"
)

const (
	defaultTimeout        = 4 * time.Second // stubs give up after 5 s
	defaultAttemptTimeout = 2 * time.Second
	defaultExpire         = 10 * time.Second
	defaultProbeInterval  = 500 * time.Millisecond

	defaultSockets = 512
	defaultConns   = 64
	defaultPending = 16384
)

// Endpoint is one upstream server. It is comparable.
type Endpoint struct {
	Addr       netip.AddrPort
	TLS        bool
	ServerName string // to verify with TLS; empty: PoolConfig.TLS's, else the address
}

// Dialer opens connections. *net.Dialer is one. Networks are "udp" and "tcp". A
// "udp" connection must be connected: it delivers datagrams of that address only.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Limits bound the resources of a pool. A server may use its share of Sockets and
// Conns, at least one.
type Limits struct {
	Sockets int // UDP sockets, shared by queries above that; 0: 512
	Conns   int // TCP and TLS connections, shared by queries above that; 0: 64
	Pending int // exchanges in flight, refused above that; 0: 16,384
}

// HealthCheck is how an endpoint that failed is probed.
type HealthCheck struct {
	Interval         time.Duration // 0: 500 ms
	RecursionDesired bool
	Domain           string // a probe queries its NS records; empty: "."
}

// PoolConfig is one forward directive. Names are fully qualified.
type PoolConfig struct {
	From   string   // names outside are for other sources; empty: "."
	Except []string // names at or below are for other sources too, except From itself

	Endpoints []Endpoint // may be empty, see SetEndpoints
	// ForceTCP queries plain endpoints over TCP only. Otherwise UDP goes first, so
	// PreferUDP changes nothing. ForceTCP wins over it.
	ForceTCP, PreferUDP bool
	Policy              Policy
	MaxFails            int           // consecutive failures; 0: never marked dead
	Expire              time.Duration // idle connections close after this; 0: 10 s
	HealthCheck         HealthCheck
	Recovered           func() // called after an endpoint that was down has replied; nil: nothing
	MaxConcurrent       int    // exchanges in flight; 0: no limit but Limits.Pending
	Limits              Limits
	TLS                 *tls.Config // for TLS endpoints; nil: defaults

	Timeout time.Duration // of an exchange, all queries; 0: 4 s
	// AttemptTimeout is the time without a reply after which a query counts as
	// failed; 0: 2 s. Other queries may follow sooner, see Start. A late reply still
	// counts.
	AttemptTimeout time.Duration

	// NoHedge sends another query only after AttemptTimeout or an error, not because
	// a reply is late.
	NoHedge bool
	// NoFailFast sends every question even while all servers are down. Otherwise
	// questions wait or fail in an outage, see ErrDown.
	NoFailFast bool

	Dialer  Dialer           // nil: net.Dialer
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger     // nil: discarded
	Metrics *Metrics         // nil: not counted
	Tap     Tap              // receives the messages, except those of probes; may be nil
}

// Pool queries the upstream servers of one forward. Its methods may be called
// concurrently.
//
// Locks are taken in this order: an attempt's, outage's, a server's, that of its
// ports or conns, timers'.
type Pool struct {
	cfg       PoolConfig
	tls       *tls.Config   // never modified
	turns     atomic.Uint32 // exchanges with PolicyRoundRobin
	bounds    atomic.Pointer[Limits]
	share     atomic.Pointer[Limits] // the part that one server may use
	active    atomic.Int64           // exchanges
	hedges    budget
	timers    timers
	down      atomic.Bool // there is an outage
	outage    outage
	downError *Error // the error of all exchanges that an outage refuses
	facts     *lru.Cache[Endpoint, *facts]

	servers atomic.Pointer[[]*server] // the slice is never modified

	mu       sync.Mutex
	stopped  bool
	suspects []*server     // to be probed; guarded by mu
	wake     chan struct{} // wakes Run; capacity 1
}

// NewPool checks c and makes its Pool. Nothing is sent until Start or Exchange.
func NewPool(c PoolConfig) (*Pool, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.setDefaults()
	known, err := lru.New[Endpoint, *facts](factsKept)
	if err != nil {
		return nil, err
	}
	p := &Pool{cfg: c, tls: baseTLS(c.TLS), facts: known, wake: make(chan struct{}, 1)}
	p.downError = &Error{EDE: edeNoReachableAuthority, Text: ErrDown.Error(), Err: fmt.Errorf("forward %s: %w", c.From, ErrDown)}
	p.outage.timer.due = p.dueOutage
	p.hedges.thousandths.Store(hedgeSaved / 2)
	p.servers.Store(new([]*server))
	p.SetLimits(c.Limits)
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
	if !slices.Contains([]Policy{"", PolicyRandom, PolicyRoundRobin, PolicySequential}, c.Policy) {
		return fmt.Errorf("policy %q: not one of random, round_robin, sequential", string(c.Policy))
	}
	if c.MaxFails < 0 || c.MaxConcurrent < 0 || min(c.Limits.Sockets, c.Limits.Conns, c.Limits.Pending) < 0 {
		return errors.New("max_fails, max_concurrent and limits must not be negative")
	}
	if c.Expire < 0 || c.Timeout < 0 || c.AttemptTimeout < 0 || c.HealthCheck.Interval < 0 {
		return errors.New("durations must not be negative")
	}
	return nil
}

func usable(e Endpoint) bool { return e.Addr.IsValid() && e.Addr.Port() != 0 }

func (c *PoolConfig) setDefaults() {
	c.From = orDefault(c.From, ".")
	c.Policy = orDefault(c.Policy, PolicyRandom)
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

// SetLimits replaces the limits. Sockets, connections and exchanges above the new
// limits stay until they end.
func (p *Pool) SetLimits(l Limits) {
	l.Sockets = orDefault(l.Sockets, defaultSockets)
	l.Conns = orDefault(l.Conns, defaultConns)
	l.Pending = orDefault(l.Pending, defaultPending)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bounds.Store(&l)
	p.setShare()
}

// setShare gives each server the same part of the limits, so that a dead one cannot use
// the parts of the others. p.mu is held.
func (p *Pool) setShare() {
	l, n := p.bounds.Load(), max(1, len(*p.servers.Load()))
	p.share.Store(&Limits{Sockets: max(1, l.Sockets/n), Conns: max(1, l.Conns/n)})
}

// SetEndpoints replaces the servers. Those that stay keep their connections
// and their health. Those that are removed close once their exchanges end.
// Unusable and repeated endpoints are left out.
func (p *Pool) SetEndpoints(endpoints []Endpoint) {
	p.setEndpoints(endpoints)
	p.judgeOutage()
}

func (p *Pool) setEndpoints(endpoints []Endpoint) {
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
	p.setShare()
	for _, s := range old {
		s.retire()
	}
}

// ServerState is the state of a server.
type ServerState struct {
	Endpoint
	Protocol string // udp, tcp or tls: the first protocol of a query
	Dead     bool   // other servers are queried first
	Times    ReplyTimes
}

// Servers returns the state of the servers, in the order of the configuration.
func (p *Pool) Servers() []ServerState {
	var all []ServerState
	for _, s := range *p.servers.Load() {
		now := ServerState{Endpoint: s.Endpoint, Protocol: "udp", Dead: s.dead.Load()}
		switch {
		case s.TLS:
			now.Protocol = "tls"
		case p.cfg.ForceTCP:
			now.Protocol = "tcp"
		}
		s.metrics.recent.Lock()
		now.Times = s.metrics.recent.quantiles(time.Now())
		s.metrics.recent.Unlock()
		all = append(all, now)
	}
	return all
}

// Run probes servers that failed and closes idle connections until ctx is
// done, and returns when the probes have ended and the idle connections are
// closed. It always returns nil and must be called at most once.
//
// Start and Exchange still work afterwards, so that exchanges during a reload
// succeed. But the pool keeps no idle connection and probes no server.
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

// wakeRun wakes Run.
func (p *Pool) wakeRun() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// closeExpired closes connections and ports that were idle for too long. It returns
// the time until the next one expires.
func (p *Pool) closeExpired() (wait time.Duration, some bool) {
	earliest := func(left time.Duration, ok bool) {
		if ok && (!some || left < wait) {
			wait, some = max(left, time.Millisecond), true
		}
	}
	for _, s := range *p.servers.Load() {
		now := p.cfg.Now()
		next, left := s.conns.expire(now)
		earliest(next.Sub(now), left)
		now = time.Now()
		next, left = s.ports.expire(now)
		earliest(next.Sub(now), left)
	}
	return wait, some
}

// stop closes idle connections and ports. From now on the servers keep none.
func (p *Pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, s := range *p.servers.Load() {
		s.retire()
	}
}

// Policy is how a Pool orders its servers for an exchange.
type Policy string

// The policies of forward. The empty Policy is PolicyRandom.
const (
	PolicyRandom     Policy = "random"
	PolicyRoundRobin Policy = "round_robin"
	PolicySequential Policy = "sequential"
)
