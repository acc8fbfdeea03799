//go:build steppedclock

package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// clockSocketEnv names the unix socket by which a test steps the clock.
const clockSocketEnv = "NODENS_CLOCK_SOCKET"

// clock is a clock for tests that only goes when it is told to: each line on
// the socket is a duration to step by, in Go's notation, and is answered with
// one line, "ok" or the error, after which every reading is of the new time.
// Only builds with the tag steppedclock have it; it lives as long as the
// process.
func clock(getenv func(string) string) (now func() time.Time, err error) {
	path := getenv(clockSocketEnv)
	if path == "" {
		return nil, errors.New("built with steppedclock: " + clockSocketEnv + " has to name a socket")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	c := &steppedClock{start: time.Now()}
	go c.serve(l)
	return c.now, nil
}

type steppedClock struct {
	start time.Time
	since atomic.Int64 // nanoseconds stepped
}

func (c *steppedClock) now() time.Time { return c.start.Add(time.Duration(c.since.Load())) }

// serve takes one connection after another.
func (c *steppedClock) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			answer := "ok"
			if d, err := time.ParseDuration(lines.Text()); err != nil {
				answer = err.Error()
			} else {
				c.since.Add(int64(d))
			}
			fmt.Fprintln(conn, answer)
		}
		_ = conn.Close()
	}
}
