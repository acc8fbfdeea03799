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

// ErrorLog logs questions that could not be answered: the errors directive. In
// each zone it logs the first failure at once, and then a summary every
// summaryPeriod until one passes without a failure. Its logger must not block.
type ErrorLog struct {
	log   *slog.Logger
	rules []*consolidator

	mu    sync.Mutex
	zones map[string]*failures // by name; absent: the next failure is logged at once
}

// summaryPeriod is the time between two lines about a zone.
const summaryPeriod = 10 * time.Second

// failures are those of a zone since its last line.
type failures struct {
	count int
	// Of the first.
	question dns.Question
	err      error
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
	e := &ErrorLog{log: l, zones: make(map[string]*failures)}
	for _, r := range rules {
		e.rules = append(e.rules, &consolidator{Consolidation: r})
	}
	return e
}

// write counts or logs that m got no answer because of err. A nil ErrorLog logs
// nothing.
func (e *ErrorLog) write(zone string, m *dns.Msg, err error) {
	if e == nil {
		return
	}
	q := m.Question[0]
	if r := e.rule(q, err); r != nil {
		if first := r.add(e.log); first && r.ShowFirst {
			e.line(r.Level, zone, q, err)
		}
		return
	}
	e.mu.Lock()
	f := e.zones[zone]
	switch {
	case f == nil:
		e.zones[zone] = new(failures)
	case f.count == 0:
		*f = failures{1, q, err}
	default:
		f.count++
	}
	e.mu.Unlock()
	if f == nil {
		e.line(slog.LevelError, zone, q, err)
		time.AfterFunc(summaryPeriod, func() { e.summarise(zone) })
	}
}

// rule returns the first rule that matches an error, or nil.
func (e *ErrorLog) rule(q dns.Question, err error) *consolidator {
	if len(e.rules) == 0 {
		return nil
	}
	// CoreDNS's text, because users write patterns for it.
	text := q.Name + " " + dns.Type(q.Qtype).String() + ": " + err.Error()
	for _, r := range e.rules {
		if r.Pattern.MatchString(text) || r.Pattern.MatchString(err.Error()) {
			return r
		}
	}
	return nil
}

// line logs a failure, after more attributes.
func (e *ErrorLog) line(level slog.Level, zone string, q dns.Question, err error, more ...any) {
	e.log.Log(context.Background(), level, "no answer", append(more, "zone", zone, "name", q.Name, "type", dns.Type(q.Qtype).String(), "error", err)...)
}

// summarise logs the failures of a period, with the first as an example. The
// timer may fire after the zone was removed.
func (e *ErrorLog) summarise(zone string) {
	e.mu.Lock()
	f := *e.zones[zone]
	if f.count == 0 {
		delete(e.zones, zone)
	} else {
		*e.zones[zone] = failures{}
	}
	e.mu.Unlock()
	if f.count > 0 {
		time.AfterFunc(summaryPeriod, func() { e.summarise(zone) })
		e.line(slog.LevelError, zone, f.question, f.err, "count", f.count, "period", summaryPeriod)
	}
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
