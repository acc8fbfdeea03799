package upstream

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// When nodens sends a second query while the first has no answer.
const (
	hedgeUnknown = 250 * time.Millisecond // for a server with few recorded replies
	hedgeSoonest = 50 * time.Millisecond  // a busy CPU delays a reply by some 10 ms
	hedgeLatest  = time.Second
	// repeatAfter is the shortest time after which a query counts as lost and is
	// repeated, hedged or not. It doubles with each query of an exchange, and with
	// each consecutive failure of the server.
	repeatAfter = 400 * time.Millisecond
)

// hedgeAfter is how long nodens waits for the reply of s to a first query before it
// sends another one. It is the time in which 95% of the replies come. It is shorter
// if the query has an OPT record and s, or the path to it, may drop such queries.
func (p *Pool) hedgeAfter(s *server, edns bool) time.Duration {
	d := time.Duration(s.rtt.p95.Load())
	if d == 0 {
		d = hedgeUnknown
	}
	if edns {
		if _, suspect := s.edns.state(p.cfg.Now()); suspect {
			d = hedgeSoonest
		}
	}
	return min(max(d, hedgeSoonest), hedgeLatest, p.cfg.AttemptTimeout/2)
}

// lateAfter is the time without a reply of s after which a query counts as failed.
// It is AttemptTimeout, or longer if most replies take longer.
func (p *Pool) lateAfter(s *server) time.Duration {
	return max(p.cfg.AttemptTimeout, min(time.Duration(s.rtt.p95.Load())*5/4, p.cfg.Timeout))
}

// repeatAfter is the time after which the n-th query of an exchange (from 1), to s,
// counts as lost.
func (p *Pool) repeatAfter(s *server, n int) time.Duration {
	d := max(repeatAfter, 2*p.hedgeAfter(s, false)) << min(n-1+s.failures(), 8)
	return min(d, p.cfg.AttemptTimeout)
}

// another sends the next query when the last one got no reply in time. The first
// such query is a hedge, and only sent if the budget allows it.
func (a *attempt) another(now time.Time) {
	last := a.tries[a.tried-1]
	if a.racing {
		a.next = a.end
		if !a.pool.down.Load() || !a.mayNotSend(now) {
			a.follow(last.s, now, false)
		}
		return
	}
	a.racing = true
	a.next = now.Add(a.pool.repeatAfter(last.s, a.tried))
	if _, suspect := last.s.edns.state(a.pool.cfg.Now()); suspect && last.size > 0 && !last.stream {
		a.query(last.s, now, false)
		return
	}
	if !last.s.down() && a.pool.hedges.spend() {
		if s := a.follow(last.s, now, true); s != nil {
			s.metrics.hedges.Inc()
		}
	}
}

// follow sends the query after one to s. It returns the server of the new query, or
// nil if it sent none. The query goes to the next server if the policy treats
// servers as equal, else to s again.
func (a *attempt) follow(s *server, now time.Time, hedge bool) *server {
	switch equals := a.pool.cfg.Policy != PolicySequential; {
	case equals && len(a.alive) > 0, !equals && a.asked(s) >= triesOfOne:
		s = a.pick()
	case equals:
		s = a.leastAsked(s)
	}
	if s == nil || a.asked(s) >= triesOfOne || !a.query(s, now, hedge) {
		return nil
	}
	return s
}

// budget limits hedges to a share of the answers. So hedging does not add load to
// upstreams that do not answer.
type budget struct{ thousandths atomic.Int64 }

const (
	hedgeCost  = 1000
	hedgeEarn  = 100 // for an answer: one hedge for ten answers
	hedgeSaved = 20 * hedgeCost
)

func (b *budget) earn() {
	if v := b.thousandths.Load(); v < hedgeSaved {
		b.thousandths.CompareAndSwap(v, v+hedgeEarn) // a race may lose one: harmless
	}
}

// spend reports whether the budget allows one more hedge, and subtracts it.
func (b *budget) spend() bool {
	for {
		v := b.thousandths.Load()
		if v < hedgeCost {
			return false
		}
		if b.thousandths.CompareAndSwap(v, v-hedgeCost) {
			return true
		}
	}
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

func rttBucket(d time.Duration) int {
	if d < 1<<rttFirst {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1
	return min((octave-rttFirst)*4+int(d>>(octave-2))&3, rttBuckets-1)
}

// rttEdge is the lower edge of bucket i.
func rttEdge(i int) time.Duration {
	return time.Duration(4+i%4) << (rttFirst + i/4 - 2)
}
