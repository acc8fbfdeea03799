package upstream

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connStack holds the idle connections to one server, the last used on top.
type connStack struct {
	mu     sync.Mutex
	conns  []idleConn // oldest first
	closed bool
}

type idleConn struct {
	net.Conn
	since time.Time
}

// take returns the connection used last, if it became idle after the given
// time and its peer has neither closed it nor said anything since; else nil.
// What it meets and cannot use it closes.
func (st *connStack) take(after time.Time) net.Conn {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.conns) > 0 {
		c := st.pop()
		if c.since.After(after) && quiet(c.Conn) {
			return c.Conn
		}
		_ = c.Close()
	}
	return nil
}

// pop removes the top of a stack that is not empty; st.mu is held.
func (st *connStack) pop() idleConn {
	last := len(st.conns) - 1
	c := st.conns[last]
	st.conns[last] = idleConn{}
	st.conns = st.conns[:last]
	return c
}

// put keeps c, which is idle from now on, and reports whether it is the only
// one. A closed stack closes it.
func (st *connStack) put(c net.Conn, now time.Time) (first bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		_ = c.Close()
		return false
	}
	st.conns = append(st.conns, idleConn{c, now})
	return len(st.conns) == 1
}

// dropBefore closes the connections that are idle since t or longer. It
// returns since when the oldest that is left is idle.
func (st *connStack) dropBefore(t time.Time) (oldest time.Time, left bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := 0
	for n < len(st.conns) && !st.conns[n].since.After(t) {
		_ = st.conns[n].Close()
		n++
	}
	kept := copy(st.conns, st.conns[n:])
	clear(st.conns[kept:])
	st.conns = st.conns[:kept]
	if kept == 0 {
		return time.Time{}, false
	}
	return st.conns[0].since, true
}

// drop closes all connections.
func (st *connStack) drop() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.conns) > 0 {
		_ = st.pop().Close()
	}
}

// close closes all connections and those that are yet to come.
func (st *connStack) close() {
	st.mu.Lock()
	st.closed = true
	st.mu.Unlock()
	st.drop()
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
