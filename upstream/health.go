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
// probe it. With MaxFails 0, or when s is retired, nobody cares.
func (p *Pool) failed(s *server, err error) {
	s.mu.Lock()
	if p.cfg.MaxFails == 0 || s.retired {
		s.mu.Unlock()
		return
	}
	s.fails++
	fell := s.fails >= p.cfg.MaxFails && s.setDead(true)
	probe := !s.probing
	s.probing = true
	s.mu.Unlock()
	if fell {
		p.cfg.Logger.Warn("upstream is down", "from", p.cfg.From, "upstream", s.name(), "error", err)
	}
	if probe {
		p.mu.Lock()
		p.suspects = append(p.suspects, s)
		p.mu.Unlock()
		p.nudge()
	}
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
	for !s.cleared() {
		err := p.probeOnce(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			p.alive(s)
			continue
		}
		s.metrics.probeFailed()
		p.failed(s, err)
		select {
		case <-ctx.Done():
			return
		case <-s.gone:
			return
		case <-tick.C:
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
	ctx, cancel := context.WithTimeout(ctx, min(probeTimeout, p.cfg.AttemptTimeout))
	defer cancel()
	m := new(dns.Msg)
	m.SetQuestion(p.cfg.HealthCheck.Domain, dns.TypeNS)
	m.RecursionDesired = p.cfg.HealthCheck.RecursionDesired
	q, err := newQuestion(m)
	if err != nil {
		return err
	}
	if s.TLS || p.cfg.ForceTCP {
		_, err = p.overStream(ctx, s, q, false)
	} else {
		_, err = p.overUDP(ctx, s, q.newQuery(false))
	}
	return err
}
