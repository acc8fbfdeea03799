package server

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// standing compares connections when one must be closed to make room.
type standing struct {
	conns   int    // of its client
	reading bool   // a part of a query has arrived; else the connection is idle
	since   uint64 // its last event, in Server.tcpEvents
}

// before reports whether a connection with standing a is closed before one with
// standing b: that of the client with more connections, then the idle one, then
// the one that has been so for longer.
func (a standing) before(b standing) bool {
	switch {
	case a.conns != b.conns:
		return a.conns > b.conns
	case a.reading != b.reading:
		return b.reading
	}
	return a.since < b.since
}

// touch notes that c becomes idle or begins to read a query.
func (c *tcpConn) touch(reading bool) {
	c.reading.Store(reading)
	c.since.Store(c.t.srv.tcpEvents.Add(1))
}

// idlest returns the connection of client to close first, of any client for the
// zero Addr. It returns nil if a query is being resolved on all of them. t.mu is
// held.
func (t *tcpListener) idlest(client netip.Addr) (found *tcpConn, best standing) {
	for c := range t.conns {
		if client.IsValid() && c.client.Addr() != client || len(c.slots) > 0 {
			continue
		}
		s := standing{t.clients[c.client.Addr()], c.reading.Load(), c.since.Load()}
		if found == nil || s.before(best) {
			found, best = c, s
		}
	}
	return found, best
}

// makeRoom makes room for a connection of client. It returns false if a limit is
// reached and no connection can be closed. t.mu is held.
func (t *tcpListener) makeRoom(client netip.Addr) bool {
	from := client
	switch {
	case t.clients[client] >= t.srv.tcp.PerClient:
	case len(t.conns) >= t.srv.tcp.Connections:
		from = netip.Addr{}
	default:
		return true
	}
	c, _ := t.idlest(from)
	if c != nil {
		t.evict(c)
	}
	return c != nil
}

// evict closes c, which makes room at once. t.mu is held.
func (t *tcpListener) evict(c *tcpConn) {
	t.forget(c)
	t.srv.metrics.tcpEvicted.Add(1)
	c.cancel()
	_ = c.c.Close() // waits until the file descriptor is free
}

// makeRoomForFile closes one connection of any listener, to free its file
// descriptor. It returns false if none can be closed.
func (s *Server) makeRoomForFile() bool {
	for {
		var found *tcpConn
		var best standing
		for _, t := range *s.tcpListeners.Load() {
			t.mu.Lock()
			if c, at := t.idlest(netip.Addr{}); c != nil && (found == nil || at.before(best)) {
				found, best = c, at
			}
			t.mu.Unlock()
		}
		if found == nil {
			return false
		}
		t := found.t
		t.mu.Lock()
		_, open := t.conns[found]
		if open {
			t.evict(found)
		}
		t.mu.Unlock()
		if open {
			return true
		}
	}
}

// isScarce reports whether err says that there are no file descriptors left.
func isScarce(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }
