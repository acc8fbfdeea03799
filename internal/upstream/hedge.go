package upstream

import (
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
	if !last.s.dead.Load() && a.pool.hedges.spend() {
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
