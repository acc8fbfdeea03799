package upstream

import (
	"sync/atomic"
	"time"
)

// When a second query follows a first that is not answered yet.
const (
	hedgeUnknown = 250 * time.Millisecond // after the first, for a server that we know little of
	hedgeSoonest = 50 * time.Millisecond  // a busy CPU keeps a reply waiting for some ten
	hedgeLatest  = time.Second
	// repeatAfter is the least time after which a query is taken for lost and
	// repeated, hedged or not. It doubles with each query of an exchange, and
	// with each failure of the server in a row.
	repeatAfter = 400 * time.Millisecond
)

// hedgeAfter is how long a query to s is waited for before another one is
// worth its cost: for as long as 95 of 100 take.
func (p *Pool) hedgeAfter(s *server) time.Duration {
	d := time.Duration(s.rtt.p95.Load())
	if d == 0 {
		d = hedgeUnknown
	}
	return min(max(d, hedgeSoonest), hedgeLatest, p.cfg.AttemptTimeout/2)
}

// repeatAfter is how long the n-th query of an exchange (from 1), to s, is
// waited for before it is taken for lost.
func (p *Pool) repeatAfter(s *server, n int) time.Duration {
	d := max(repeatAfter, 2*p.hedgeAfter(s)) << min(n-1+s.failures(), 8)
	return min(d, p.cfg.AttemptTimeout)
}

// budget keeps hedges to a share of the answers: upstreams that do not answer
// get no more queries for it.
type budget struct{ thousandths atomic.Int64 }

const (
	hedgeCost  = 1000
	hedgeEarn  = 100 // for an answer: one hedge for ten answers
	hedgeSaved = 20 * hedgeCost
)

func (b *budget) earn() {
	if v := b.thousandths.Load(); v < hedgeSaved {
		b.thousandths.CompareAndSwap(v, v+hedgeEarn) // one that is lost in a race is no matter
	}
}

// spend reports whether one more hedge is affordable, and pays for it.
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
