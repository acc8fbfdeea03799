package upstream

import (
	"errors"
	"sync"
	"time"
)

// ErrDown means that all upstreams of a pool are down, and that the question was not
// sent.
var ErrDown = errors.New("every upstream is down")

// What a pool does while all its servers are lost.
const (
	// outageWait is the first part of an outage. During it, exchanges wait for the
	// upstream to return and are not sent. After it, they fail at once.
	outageWait = 10 * time.Second
	// trialEvery is the pause between trials, the real questions that are sent
	// during an outage. A resolver may answer clients and drop the probes.
	trialEvery = 500 * time.Millisecond
	// After the outage, releaseSome of the waiting exchanges are sent every
	// releaseEvery. A larger burst would overflow the buffers of the upstream.
	releaseSome  = 128
	releaseEvery = 2 * time.Millisecond
)

// outage is the state of a pool all of whose servers are lost, and the
// exchanges that wait for its end.
type outage struct {
	mu      sync.Mutex
	since   time.Time // zero: there is none
	trial   time.Time // when the next trial may be sent
	waiting []*attempt
	timer   timer // sends trials, and later releases
}

// judgeOutage begins or ends the outage by the state of the servers.
func (p *Pool) judgeOutage() {
	o := &p.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	servers := *p.servers.Load()
	down := len(servers) > 0 && !p.cfg.NoFailFast
	for _, s := range servers {
		down = down && s.isLost()
	}
	if down == p.down.Load() {
		return
	}
	p.down.Store(down)
	now := time.Now()
	if down {
		o.since, o.trial = now, now
		p.cfg.Logger.Warn("every upstream of the zone is down, queries wait and then fail", "zone", p.cfg.From)
		return
	}
	o.since = time.Time{}
	p.cfg.Logger.Info("queries are sent again", "zone", p.cfg.From, "waiting", len(o.waiting))
	p.timers.set(&o.timer, now)
}

// enter decides whether a is sent during an outage; a.mu is held. It sets a.trial if
// a is sent as a trial, a.waits if a waits, else neither. A trial after outageWait
// fails with ErrDown at once, and is sent only to find out whether the upstream
// replies.
func (o *outage) enter(a *attempt, now time.Time) {
	p := a.pool
	o.mu.Lock()
	switch {
	case o.since.IsZero(): // just ended
		a.trial = true
	case now.Sub(o.since) < outageWait && p.active.Load() <= int64(p.bounds.Load().Pending/2):
		a.waits = true
		o.waiting = append(o.waiting, a)
		a.place = len(o.waiting)
		p.timers.set(&o.timer, later(now, o.trial))
	case !now.Before(o.trial):
		o.trial = now.Add(trialEvery)
		a.trial = true
		if a.tried == 0 {
			a.early, a.err = true, p.downError
		}
	}
	o.mu.Unlock()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leave removes a from the waiting exchanges.
func (o *outage) leave(a *attempt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.place != 0 {
		o.drop(a)
	}
}

// drop is leave for an exchange that waits; o.mu is held.
func (o *outage) drop(a *attempt) {
	n := len(o.waiting)
	last := o.waiting[n-1]
	o.waiting[a.place-1], last.place = last, a.place
	o.waiting[n-1] = nil
	o.waiting = o.waiting[:n-1]
	a.place = 0
}

// dueOutage sends a trial, or releases some of the waiting exchanges.
func (p *Pool) dueOutage() {
	o := &p.outage
	o.mu.Lock()
	now, down := time.Now(), !o.since.IsZero()
	some, pause := releaseSome, releaseEvery
	if down {
		some, pause = 1, trialEvery
		o.trial = now.Add(pause)
	}
	released := make([]*attempt, 0, min(some, len(o.waiting)))
	for len(o.waiting) > 0 && len(released) < some {
		a := o.waiting[len(o.waiting)-1] // the one with the most time left
		o.drop(a)
		released = append(released, a)
	}
	if len(o.waiting) > 0 {
		p.timers.set(&o.timer, now.Add(pause))
	}
	o.mu.Unlock()
	for _, a := range released {
		a.resume(down)
	}
}
