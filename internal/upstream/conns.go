package upstream

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connStack holds the idle connections to one server, the last used on top.
type connStack struct {
	mu     sync.Mutex
	conns  []*stream
	closed bool
}

// take returns the connection used last, if it has time left and its peer has
// neither closed it nor said anything since; else nil. What it meets and
// cannot use it closes.
func (st *connStack) take(now time.Time) *stream {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.conns) > 0 {
		c := st.pop()
		if c.until.After(now) && quiet(c.Conn) {
			return c
		}
		_ = c.Close()
	}
	return nil
}

// pop removes the top of a stack that is not empty; st.mu is held.
func (st *connStack) pop() *stream {
	last := len(st.conns) - 1
	c := st.conns[last]
	st.conns[last] = nil
	st.conns = st.conns[:last]
	return c
}

// put keeps c, which is idle from now on until c.until, and reports whether it
// is the only one. A closed stack closes it.
func (st *connStack) put(c *stream) (first bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		_ = c.Close()
		return false
	}
	st.conns = append(st.conns, c)
	return len(st.conns) == 1
}

// expire closes the connections whose time is over and tells when that of the
// next one is.
func (st *connStack) expire(now time.Time) (next time.Time, left bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	kept := st.conns[:0]
	for _, c := range st.conns {
		if !c.until.After(now) {
			_ = c.Close()
			continue
		}
		kept = append(kept, c)
		if !left || c.until.Before(next) {
			next, left = c.until, true
		}
	}
	clear(st.conns[len(kept):])
	st.conns = kept
	return next, left
}

// dropOlder closes the connections that are idle since before t.
func (st *connStack) dropOlder(t time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.conns = slices.DeleteFunc(st.conns, func(c *stream) bool {
		older := c.since.Before(t)
		if older {
			_ = c.Close()
		}
		return older
	})
}

// close closes all connections and those that are yet to come.
func (st *connStack) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	for len(st.conns) > 0 {
		_ = st.pop().Close()
	}
}

// quiet reports whether c is open and has nothing to read, without waiting. A
// connection that is no socket cannot be told and passes. TLS connections are
// judged by their TCP connection: a session ticket that nobody read yet
// condemns them too, which costs a handshake and no answer.
func quiet(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = err == unix.EAGAIN
	})
	return err == nil && silent
}
