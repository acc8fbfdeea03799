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

// clock returns a clock for tests that stands still. Each line on the socket is a
// duration, in Go's notation, by which the clock steps. The reply is one line, "ok"
// after the step or an error. Only builds with the tag steppedclock have it. It runs
// until the process ends.
func clock(getenv func(string) string) (now func() time.Time, err error) {
	path := getenv(clockSocketEnv)
	if path == "" {
		return nil, errors.New("built with steppedclock: " + clockSocketEnv + " must name a socket")
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

// serve handles one connection at a time.
func (c *steppedClock) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			reply := "ok"
			if d, err := time.ParseDuration(lines.Text()); err != nil {
				reply = err.Error()
			} else {
				c.since.Add(int64(d))
			}
			fmt.Fprintln(conn, reply)
		}
		_ = conn.Close()
	}
}
