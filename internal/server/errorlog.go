package server

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Consolidation logs one line per Period for all errors that match Pattern.
type Consolidation struct {
	Period  time.Duration
	Pattern *regexp.Regexp
	Level   slog.Level // of the consolidated line
	// ShowFirst logs the first error of a period at once, at Level.
	ShowFirst bool
}

// ErrorLog writes a line for each question that could not be answered: the
// errors directive.
type ErrorLog struct {
	log   *slog.Logger
	rules []*consolidator
}

// consolidator counts matches. The first match of a period starts a timer that
// reports all of them.
type consolidator struct {
	Consolidation
	mu    sync.Mutex
	count int
}

// NewErrorLog makes an error log that writes to l at level Error.
func NewErrorLog(l *slog.Logger, rules []Consolidation) *ErrorLog {
	e := &ErrorLog{log: l}
	for _, r := range rules {
		e.rules = append(e.rules, &consolidator{Consolidation: r})
	}
	return e
}

// write logs that m got no answer because of err. A nil ErrorLog logs nothing.
func (e *ErrorLog) write(zone string, m *dns.Msg, err error) {
	if e == nil {
		return
	}
	q := m.Question[0]
	// CoreDNS's text, because users write patterns for it.
	text := q.Name + " " + dns.Type(q.Qtype).String() + ": " + err.Error()
	level := slog.LevelError
	for _, r := range e.rules {
		if r.Pattern.MatchString(text) || r.Pattern.MatchString(err.Error()) {
			if first := r.add(e.log); !first || !r.ShowFirst {
				return
			}
			level = r.Level
			break
		}
	}
	e.log.Log(context.Background(), level, "no answer", "zone", zone, "name", q.Name, "type", dns.Type(q.Qtype).String(), "error", err)
}

// add counts one match and reports whether it is the first of a period. The timer
// may fire after its zone was removed.
func (c *consolidator) add(log *slog.Logger) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.count > 1 {
		return false
	}
	time.AfterFunc(c.Period, func() {
		c.mu.Lock()
		n := c.count
		c.count = 0
		c.mu.Unlock()
		if n == 1 && c.ShowFirst {
			return
		}
		log.Log(context.Background(), c.Level, "errors consolidated", "count", n, "pattern", c.Pattern.String(), "period", c.Period)
	})
	return true
}
