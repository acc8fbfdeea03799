package config

import "time"

// CoreDNS's defaults and limits.
const (
	defaultReloadInterval = 30 * time.Second
	defaultReloadJitter   = 15 * time.Second
	minReloadInterval     = 2 * time.Second
	minReloadJitter       = time.Second
)

// parseReload reads reload [INTERVAL [JITTER]]. The jitter is at most half of the
// interval.
func parseReload(b *Block, s statement) error {
	if err := s.arity(0, 2, "[INTERVAL [JITTER]]"); err != nil {
		return err
	}
	if err := s.noBlock(); err != nil {
		return err
	}
	r := &Reload{Line: s.line, Interval: defaultReloadInterval, Jitter: defaultReloadJitter}
	var err error
	if len(s.args) > 0 {
		if r.Interval, err = parseDuration("interval", s.args[0].text); err != nil {
			return s.fail(err)
		}
	}
	if len(s.args) > 1 {
		if r.Jitter, err = parseDuration("jitter", s.args[1].text); err != nil {
			return s.fail(err)
		}
	}
	switch {
	case r.Interval > 0 && r.Interval < minReloadInterval:
		return s.errorf("interval %s is shorter than 2s; 0 turns watching off", s.args[0].text)
	case r.Jitter < minReloadJitter:
		return s.errorf("jitter %s is shorter than 1s", s.args[1].text)
	}
	r.Jitter = min(r.Jitter, r.Interval/2)
	b.Reload = r
	return nil
}
