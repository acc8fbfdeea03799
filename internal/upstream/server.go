package upstream

import (
	"context"
	"crypto/tls"
	"math/bits"
	"sync"
	"sync/atomic"
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
	lost  bool      // see lostQueries
	// dead means that MaxFails was reached: other servers are queried first. It is
	// written under mu.
	dead atomic.Bool
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
	if s.dead.Swap(dead) == dead {
		return false
	}
	if dead {
		s.metrics.addDown(1)
	} else {
		s.metrics.addDown(-1)
	}
	return true
}

// heard records what the reply m to q, even a late one, shows about q's server. The
// server's earlier failures no longer count.
func (p *Pool) heard(q *query, m *dns.Msg, kind replyKind, now time.Time) {
	s := q.s
	s.metrics.rtt.Store(int64(s.rtt.observe(now.Sub(q.sent))))
	if q.size > 0 && kind != replyDenies && !q.stream {
		s.edns.replied(p.cfg.Now(), m.IsEdns0() != nil)
	}
	s.mu.Lock()
	s.fails, s.heard = 0, time.Now()
	found := s.lost
	s.lost = false
	back := s.dead.Load() && s.setDead(false)
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
	result := make(chan error, 2) // of the time in which a reply is due, and of a late one
	a := &attempt{pool: p, question: q, end: time.Now().Add(lateProbe), tryList: tryList{alive: []*server{s}}, probe: true}
	a.timer.due = a.due
	a.done = func(_ *dns.Msg, err error) { result <- err }
	a.mu.Lock()
	a.ask(time.Now())
	a.unlock()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		a.cancel()
		return ctx.Err()
	}
}

// For how long nodens sends a server no OPT record.
const (
	noEDNSFor  = 15 * time.Minute // after the server rejected one
	dropsFor   = 30 * time.Second // after the server or the path dropped one; doubles
	dropsAfter = 4 * time.Second  // silence that shows such a drop
)

// edns records whether a server supports OPT records.
type edns struct {
	mu       sync.Mutex    // times are by the pool's clock
	off      time.Time     // no OPT records until then
	sent     time.Time     // when the last OPT record came from the server
	answered time.Time     // when it last answered a query that had one, by the system's clock
	suspect  bool          // the server answered without one, and not yet with one
	watching bool          // a query that had one is watched for a late reply
	hold     time.Duration // the last time without OPT records after silence
}

// state reports whether a query may have an OPT record (on), and whether a query
// without one should follow soon (suspect).
func (e *edns) state(now time.Time) (on, suspect bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !now.Before(e.off), e.suspect
}

// replied records a reply to a query that had an OPT record. opt means that the
// reply had one too.
func (e *edns) replied(now time.Time, opt bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered, e.suspect, e.hold = time.Now(), false, 0
	if opt {
		e.sent = now
	}
}

// rejected records that the server answered a question only without an OPT record.
// If the server has sent OPT records lately, the question is the cause: a forwarder
// passes the query to another server that cannot read the record. One such name must
// not turn EDNS off for all.
func (e *edns) rejected(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.sent) >= noEDNSFor {
		e.off = now.Add(noEDNSFor)
	}
}

// watch records that the server answered a question without an OPT record, but not
// with one. It reports whether the caller must watch the query with the record for a
// late reply.
func (e *edns) watch(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching || now.Before(e.off) {
		return false
	}
	e.watching, e.suspect = true, true
	return true
}

// unwatch ends watch. The query was sent at since, by the system's clock. silent
// means that it got no reply for dropsAfter. Then OPT records are off for a while,
// unless the server has answered another query with one or has sent OPT records
// lately.
func (e *edns) unwatch(now, since time.Time, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watching = false
	if !silent || !e.suspect || e.answered.After(since) {
		return
	}
	if now.Sub(e.sent) < noEDNSFor {
		e.suspect = false
		return
	}
	e.hold = min(max(2*e.hold, dropsFor), noEDNSFor)
	e.off = now.Add(e.hold)
}

// Reply times are counted in buckets of a quarter octave, from 2^rttFirst ns
// (33 µs) to 2^33 ns (8.6 s).
const (
	rttFirst   = 15
	rttBuckets = (33 - rttFirst) * 4
	rttWindow  = 1024 // samples after which older ones count half
	rttRecount = 16   // samples between two computations of the quantile
)

// rtt keeps the reply times of one server: a smoothed mean (RFC 6298 section
// 2) and the 95th percentile of the recent ones. It is safe for concurrent use.
type rtt struct {
	p95 atomic.Int64 // nanoseconds; 0: too few samples

	mu       sync.Mutex
	counts   [rttBuckets]uint16
	total    int
	since    int // samples since the last recount
	smoothed time.Duration
}

// observe adds the time between a query and its own reply and returns the
// smoothed mean.
func (r *rtt) observe(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total == 0 {
		r.smoothed = d
	}
	r.smoothed += (d - r.smoothed) / 8
	r.counts[rttBucket(d)]++
	r.total++
	if r.since++; r.since < rttRecount {
		return r.smoothed
	}
	r.since = 0
	r.p95.Store(int64(r.quantile()))
	if r.total >= rttWindow {
		r.total = 0
		for i := range r.counts {
			r.counts[i] /= 2
			r.total += int(r.counts[i])
		}
	}
	return r.smoothed
}

// rttBucket returns the bucket of d.
func rttBucket(d time.Duration) int {
	if d < 1<<rttFirst {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1
	return min((octave-rttFirst)*4+int(d>>(octave-2))&3, rttBuckets-1)
}

// quantile returns the upper edge of the bucket of the 95th percentile. r.mu is
// held.
func (r *rtt) quantile() time.Duration {
	above := r.total / 20
	for i := rttBuckets - 1; i > 0; i-- {
		if above -= int(r.counts[i]); above < 0 {
			return rttEdge(i + 1)
		}
	}
	return rttEdge(1)
}

// rttEdge is the lower edge of bucket i.
func rttEdge(i int) time.Duration {
	return time.Duration(4+i%4) << (rttFirst + i/4 - 2)
}
