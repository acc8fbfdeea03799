package upstream

import (
	"context"
	"time"

	"github.com/miekg/dns"
)

// probeTimeout is the longest wait for the reply to a probe.
const probeTimeout = time.Second

// down reports whether s failed so often in a row that others go first.
func (s *server) down() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// alive notes that s replied: whatever it failed before is forgotten.
func (p *Pool) alive(s *server) {
	s.mu.Lock()
	s.fails = 0
	back := s.setDead(false)
	s.mu.Unlock()
	if back {
		p.cfg.Logger.Info("upstream is back", "from", p.cfg.From, "upstream", s.name())
	}
}

// failed notes that s did not reply, or not with a DNS message, and has Run
// probe it. With MaxFails 0 it is never taken for dead nor probed; when s is
// retired, nobody cares.
func (p *Pool) failed(s *server, err error) {
	s.mu.Lock()
	if s.retired {
		s.mu.Unlock()
		return
	}
	s.fails++
	fell := p.cfg.MaxFails > 0 && s.fails >= p.cfg.MaxFails && s.setDead(true)
	s.mu.Unlock()
	if fell {
		p.cfg.Logger.Warn("upstream is down", "from", p.cfg.From, "upstream", s.name(), "error", err)
	}
	p.suspect(s)
}

// suspect has Run probe s, unless it does so already. It is called for a
// silence that proves nothing yet.
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
	p.nudge()
}

// takeSuspects returns the servers whose probing is due to begin.
func (p *Pool) takeSuspects() []*server {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.suspects
	p.suspects = nil
	return due
}

// probe asks s, now and once an interval, until it replies to the probe or to
// a query, is retired, or ctx is done.
func (p *Pool) probe(ctx context.Context, s *server) {
	tick := time.NewTicker(p.cfg.HealthCheck.Interval)
	defer tick.Stop()
	for {
		err := p.probeOnce(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			p.alive(s)
		} else {
			s.metrics.probeFailed()
			p.failed(s, err)
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

// cleared reports whether s needs no probe any more, and ends its probing
// then: the next failure begins it anew.
func (s *server) cleared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = s.fails > 0 && !s.retired
	return !s.probing
}

// probeOnce sends one probe. Any reply to it is a sign of life, whatever its
// rcode.
func (p *Pool) probeOnce(ctx context.Context, s *server) error {
	m := new(dns.Msg)
	m.SetQuestion(p.cfg.HealthCheck.Domain, dns.TypeNS)
	m.RecursionDesired = p.cfg.HealthCheck.RecursionDesired
	q, err := newQuestion(m)
	if err != nil {
		return err
	}
	overStream := s.TLS || p.cfg.ForceTCP
	t, err := p.newTry(s, q.pack(false, overStream), overStream, false)
	if err != nil {
		return err
	}
	t.deadline = t.started.Add(min(probeTimeout, p.cfg.AttemptTimeout))
	_, err = t.work(ctx, p, nil, nil)
	return err
}
