package upstream

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// server is an Endpoint with its state.
type server struct {
	Endpoint
	*facts
	pool    *Pool
	to      string // host:port, as dialled and as a metric label
	tls     *tls.Config
	ports   ports
	conns   conns
	metrics *endpointMetrics
	gone    chan struct{} // closed when retired

	mu      sync.Mutex
	health  // see below
	probing bool
	retired bool
}

// facts are observed properties of an endpoint. They survive a change of the pool's
// endpoints.
type facts struct {
	rtt  rtt
	edns edns
}

// factsKept limits the endpoints of a pool that have facts.
const factsKept = 256

// newServer makes the server of e; p.mu is held.
func (p *Pool) newServer(e Endpoint) *server {
	s := &server{Endpoint: e, pool: p, to: e.Addr.String(), gone: make(chan struct{})}
	s.ports.server, s.conns.server = s, s
	s.metrics = p.cfg.Metrics.acquire(s.to)
	known, ok := p.facts.Get(e)
	if !ok {
		known = new(facts)
		p.facts.Add(e, known)
	}
	s.facts = known
	if e.TLS {
		s.tls = endpointTLS(p.tls, e)
	}
	if p.stopped {
		s.retire()
	}
	return s
}

// retire closes idle connections and ports, and ends the probes and the metrics.
// From now on the server keeps none. Exchanges in flight continue.
func (s *server) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return
	}
	s.retired = true
	close(s.gone)
	s.conns.retire()
	s.ports.retire()
	s.setDead(false)
	s.metrics.release()
}

// share is the part of a limit of the pool that one server may use. So a dead server
// cannot use the shares of the others.
func (s *server) share(limit int) int {
	return max(1, limit/max(1, len(*s.pool.servers.Load())))
}

// name is the server's name in errors and logs.
func (s *server) name() string {
	if s.ServerName != "" {
		return s.to + " (" + s.ServerName + ")"
	}
	return s.to
}

const (
	// probeTimeout is how long a probe may take before it counts as failed.
	probeTimeout = time.Second
	// lateProbe is how long a late reply to a probe still shows that the server is
	// alive.
	lateProbe = 4 * time.Second
)

// A server is lost if at least lostQueries queries over at least lostAfter got no
// reply. If all servers of a pool are lost, the pool fails fast.
const (
	lostQueries = 6
	lostAfter   = 3 * time.Second
)

// health is the state of a server, from its replies and from missing replies.
type health struct {
	fails int       // consecutive failures
	heard time.Time // when the last reply came
	first time.Time // when the first of them was sent
	dead  bool      // MaxFails was reached: other servers are queried first
	lost  bool      // see lostQueries
}

// down reports whether s has so many consecutive failures that others are queried
// first.
func (s *server) down() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// isLost reports whether s has sent no reply for long.
func (s *server) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// failures is the number of consecutive failures.
func (s *server) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fails
}

// setDead changes dead and reports whether that was a change; s.mu is held.
func (s *server) setDead(dead bool) (changed bool) {
	if s.dead == dead {
		return false
	}
	s.dead = dead
	if dead {
		s.metrics.addDown(1)
	} else {
		s.metrics.addDown(-1)
	}
	return true
}

// alive records that s replied. Its earlier failures no longer count.
func (p *Pool) alive(s *server) {
	s.mu.Lock()
	s.fails, s.heard = 0, time.Now()
	found := s.lost
	s.lost = false
	back := s.dead && s.setDead(false)
	s.mu.Unlock()
	if back {
		p.cfg.Logger.Info("upstream is back", "zone", p.cfg.From, "upstream", s.name())
		if p.cfg.Recovered != nil {
			p.cfg.Recovered()
		}
	}
	if found {
		p.judgeOutage()
	}
}

// failed records that s sent no reply, or no DNS message, to the query that was sent
// at sent. It makes Run probe s. With MaxFails 0, s is never marked dead or probed.
// Failures of a retired server do not count. A missing reply does not count if s has
// replied to another query since sent.
func (p *Pool) failed(s *server, err error, sent time.Time) {
	s.mu.Lock()
	if s.retired || isTimeout(err) && sent.Before(s.heard) {
		s.mu.Unlock()
		return
	}
	s.fails++
	if s.fails == 1 || sent.Before(s.first) {
		s.first = sent
	}
	checked := p.cfg.MaxFails > 0
	fell := checked && s.fails >= p.cfg.MaxFails && s.setDead(true)
	lost := checked && !s.lost && s.fails >= lostQueries && time.Since(s.first) >= lostAfter
	s.lost = s.lost || lost
	s.mu.Unlock()
	if fell {
		p.cfg.Logger.Warn("upstream is down", "zone", p.cfg.From, "upstream", s.name(), "error", err)
	}
	if lost {
		p.judgeOutage()
	}
	p.suspect(s)
}

// suspect makes Run probe s, unless Run does so already. It is called for a missing
// reply that is no failure yet.
func (p *Pool) suspect(s *server) {
	s.mu.Lock()
	probe := !s.probing && !s.retired && p.cfg.MaxFails > 0
	s.probing = s.probing || probe
	s.mu.Unlock()
	if !probe {
		return
	}
	p.mu.Lock()
	p.suspects = append(p.suspects, s)
	p.mu.Unlock()
	p.wakeRun()
}

// takeSuspects returns the servers to start probing.
func (p *Pool) takeSuspects() []*server {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.suspects
	p.suspects = nil
	return due
}

// probe sends probes to s, now and once an interval, until it replies to a probe
// or to a query, is retired, or ctx is done.
func (p *Pool) probe(ctx context.Context, s *server) {
	tick := time.NewTicker(p.cfg.HealthCheck.Interval)
	defer tick.Stop()
	for {
		sent := time.Now()
		err := p.probeOnce(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.metrics.probeFailed()
			p.failed(s, err, sent)
		}
		if s.cleared() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.gone:
			return
		case <-tick.C:
		}
		if s.cleared() {
			return
		}
	}
}

// cleared reports whether s needs no more probes. If so, it ends the probing of s.
// The next failure starts it again.
func (s *server) cleared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = s.fails > 0 && !s.retired
	return !s.probing
}

// probeOnce sends one probe. Any reply to it shows that the server is alive,
// whatever its rcode, even one that comes after the probe has failed.
func (p *Pool) probeOnce(ctx context.Context, s *server) error {
	m := new(dns.Msg)
	m.SetQuestion(p.cfg.HealthCheck.Domain, dns.TypeNS)
	m.RecursionDesired = p.cfg.HealthCheck.RecursionDesired
	q, err := newQuestion(m)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	a := &attempt{pool: p, question: q, end: time.Now().Add(lateProbe), tryList: tryList{alive: []*server{s}}, probe: true}
	a.timer.due = a.due
	a.done = func(_ *dns.Msg, err error) { result <- err }
	a.begin()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		a.cancel()
		return ctx.Err()
	}
}
