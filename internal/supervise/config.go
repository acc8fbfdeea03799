package supervise

import (
	"cmp"
	"log/slog"
	"time"
)

// Program is what a worker runs. Standard input, output and error are the
// supervisor's.
type Program struct {
	Path string
	Args []string // with the program's name
	Env  []string
}

// Config says what is kept running, and how.
type Config struct {
	Program Program
	// Start is the time until the first beat. Default a minute.
	Start time.Duration
	// Hung is the silence after which a worker is killed. Default 3 s.
	Hung time.Duration
	// Stop is the silence after which a worker that was told to stop is killed:
	// at least what it may take when it serves no more. Default 15 s.
	Stop time.Duration
	// Free ends the waiting of clients for answers of a worker that died or is
	// silent, with that worker's last report. It is called from a goroutine of
	// its own, never twice at the same time. May be nil.
	Free   func(Report)
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Start = cmp.Or(c.Start, time.Minute)
	c.Hung = cmp.Or(c.Hung, 3*time.Second)
	c.Stop = cmp.Or(c.Stop, 15*time.Second)
	if c.Free == nil {
		c.Free = func(Report) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c *Config) limits() limits { return limits{start: c.Start, kill: c.Hung} }
