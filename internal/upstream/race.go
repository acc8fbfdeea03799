package upstream

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// race is the part of an attempt that has several queries under way, each
// worked on by a goroutine.
type race struct {
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	results chan result // has room for all
	entered []*try
	flying  int       // of them, without a result yet
	next    time.Time // when another query goes out
}

// result is what became of a try.
type result struct {
	t   *try
	m   *dns.Msg
	err error
}

// enter leaves t, which came to m or err, to a goroutine. The first one that
// is only late is worth a hedge at once.
func (a *attempt) enter(t *try, m *dns.Msg, err error) {
	if a.results == nil {
		a.ctx, a.cancel = context.WithCancel(a.caller)
		a.results = make(chan result, maxTries)
	}
	late := err == errPending && !t.sent.IsZero()
	if err == errPending {
		err = nil
	}
	a.entered = append(a.entered, t)
	a.flying++
	a.race.work.Go(func() {
		m, err := t.work(a.ctx, a.pool, m, err)
		a.results <- result{t, m, err}
	})
	if a.pool.cfg.Patient {
		a.race.next = a.end
		return
	}
	a.race.next = time.Now().Add(a.pool.repeatAfter(t.s, a.tries))
	if late && !t.s.down() && a.pool.hedges.spend() {
		if h := a.another(t.s); h != nil {
			h.s.metrics.hedged()
			a.enter(h, nil, nil)
		}
	}
}

// another prepares the query that follows one to s which has not been answered
// yet, nil if there is none to be: to the next server if the policy takes them
// for equals, else to s again.
func (a *attempt) another(s *server) *try {
	if a.pool.cfg.Policy != PolicySequential && len(a.alive) > 0 {
		return a.launch()
	}
	if a.asked(s) < triesOfOne {
		return a.prepare(s)
	}
	return nil
}

// sideBySide waits for the queries under way, and lets more follow, until one
// is answered, all have failed, or the time is over.
func (a *attempt) sideBySide() *dns.Msg {
	timer := time.NewTimer(time.Until(a.sooner(a.race.next)))
	defer timer.Stop()
	for a.flying > 0 {
		select {
		case r := <-a.results:
			a.flying--
			if m := a.judge(r.t, r.m, r.err); m != nil {
				return m
			}
			if a.flying == 0 {
				a.follow(a.launch())
			}
		case <-timer.C:
			if !time.Now().Before(a.end) {
				return nil
			}
			a.race.next = a.end
			a.follow(a.another(a.asks[a.tries-1]))
		case <-a.caller.Done():
			return nil
		}
		timer.Reset(time.Until(a.sooner(a.race.next)))
	}
	return nil
}

func (a *attempt) follow(t *try) {
	if t != nil {
		a.enter(t, nil, nil)
	}
}

// leave ends the queries that are still under way. The silence of one while
// another server has answered makes its server a suspect; where nobody has,
// it is a failure if it was long enough.
func (a *attempt) leave() {
	if a.results == nil {
		return
	}
	a.cancel()
	a.race.work.Wait()
	for _, t := range a.entered {
		switch {
		case t.settled:
		case a.winner != nil:
			if t.reused {
				t.s.idle.dropOlder(t.started) // they are as dead as this one
			}
			if t.s != a.winner {
				a.pool.suspect(t.s)
			}
		default:
			a.judge(t, nil, os.ErrDeadlineExceeded)
		}
	}
}
