package config

import (
	"strconv"
	"time"
)

// Timeouts is the timeouts directive. Zero means the default.
type Timeouts struct {
	Line  int
	Read  time.Duration // for the first query of a connection
	Idle  time.Duration // for each further query
	Write time.Duration // for the client to receive a reply
	// Queries is the maximum per connection; -1: no limit.
	Queries int
}

// CoreDNS's limits.
const (
	minTimeout = time.Second
	maxTimeout = 24 * time.Hour
)

// parseTimeouts reads timeouts and its options.
func parseTimeouts(b *Block, s statement) error {
	if err := s.arity(0, 0, ""); err != nil {
		return err
	}
	if len(s.block) == 0 {
		return s.errorf("an option is missing, expected: read, write, idle or maxtcpqueries")
	}
	t := &Timeouts{Line: s.line}
	b.Timeouts = t
	return s.eachOption(func(string) bool { return true }, t.parseOption)
}

func (t *Timeouts) parseOption(o statement) error {
	to := map[string]*time.Duration{"read": &t.Read, "write": &t.Write, "idle": &t.Idle}[o.text]
	switch {
	case o.text == "maxtcpqueries":
		return t.parseQueries(o)
	case to == nil:
		return o.unknown()
	}
	if err := o.arity(1, 1, "DURATION"); err != nil {
		return err
	}
	text := o.args[0].text
	if isDigits(text) { // seconds, as in CoreDNS
		text += "s"
	}
	d, err := parseDuration("duration", text)
	if err != nil {
		return o.fail(err)
	}
	if d < minTimeout || d > maxTimeout {
		return o.errorf("duration %s is out of range, expected 1s to 24h", o.args[0].text)
	}
	*to = d
	return nil
}

func (t *Timeouts) parseQueries(o statement) error {
	if err := o.arity(1, 1, "NUMBER"); err != nil {
		return err
	}
	n, err := strconv.Atoi(o.args[0].text)
	if err != nil || n == 0 || n < -1 {
		return o.errorf("%q is not a number of at least 1, or -1 for no limit", o.args[0].text)
	}
	t.Queries = n
	return nil
}

func (t *Timeouts) describe() []string {
	orDefault := func(d time.Duration) string {
		if d == 0 {
			return "default"
		}
		return durationText(d)
	}
	queries := "any"
	if t.Queries > 0 {
		queries = strconv.Itoa(t.Queries)
	}
	return []string{
		"read " + orDefault(t.Read), "write " + orDefault(t.Write), "idle " + orDefault(t.Idle), "maxtcpqueries " + queries,
	}
}
