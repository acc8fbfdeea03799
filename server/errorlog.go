package server

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Consolidation folds the errors that match Pattern into one line a Period.
type Consolidation struct {
	Period  time.Duration
	Pattern *regexp.Regexp
	Level   slog.Level // of the consolidated line
}

// ErrorLog writes a line for each question that could not be answered: the
// errors directive.
type ErrorLog struct {
	log   *slog.Logger
	rules []*consolidator
}

// consolidator counts matches. The first one of a period arms a timer that
// reports them all.
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

// write logs that m got no answer because of err. A nil ErrorLog is silent.
func (e *ErrorLog) write(zone string, m *dns.Msg, err error) {
	if e == nil {
		return
	}
	q := m.Question[0]
	// The text that consolidate patterns are written for.
	text := q.Name + " " + dns.Type(q.Qtype).String() + ": " + err.Error()
	for _, r := range e.rules {
		if r.Pattern.MatchString(text) {
			r.add(e.log)
			return
		}
	}
	e.log.Error("no answer", "zone", zone, "name", q.Name, "type", dns.Type(q.Qtype).String(), "error", err)
}

// add counts one match. The timer holds nothing but the count, so one that
// fires after its zone is gone does no harm.
func (c *consolidator) add(log *slog.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.count > 1 {
		return
	}
	time.AfterFunc(c.Period, func() {
		c.mu.Lock()
		n := c.count
		c.count = 0
		c.mu.Unlock()
		log.Log(context.Background(), c.Level, "errors consolidated", "count", n, "pattern", c.Pattern.String(), "period", c.Period)
	})
}
