package supervise

import (
	"cmp"
	"log/slog"
	"time"
)

// Program is the program of a worker. It has the supervisor's standard input,
// output and error.
type Program struct {
	Path string
	Args []string // with the program's name
	Env  []string
}

// Config configures Run.
type Config struct {
	Program Program
	// StartTimeout is the time until the first heartbeat. Default 1 minute.
	StartTimeout time.Duration
	// Timeout is the time without a heartbeat after which the supervisor kills a worker.
	// It is up to ten times as long for a worker that waits for a CPU. Default 3 s.
	Timeout time.Duration
	// StopTimeout replaces Timeout after SIGTERM or SIGINT. It must be longer than
	// the time that the worker needs after it has stopped to serve. Default 15 s.
	StopTimeout time.Duration
	// Disconnect closes the sockets of clients that wait for the answer of a
	// worker that died or hangs, given its last report. It is called from its own
	// goroutine, one call at a time. May be nil.
	Disconnect func(Report)
	Logger     *slog.Logger
}

func (c Config) withDefaults() Config {
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.Timeout = cmp.Or(c.Timeout, 3*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 15*time.Second)
	if c.Disconnect == nil {
		c.Disconnect = func(Report) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
