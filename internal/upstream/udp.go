package upstream

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A query goes out from a random UDP port. A spoofer must guess the ID and the port
// (RFC 5452 section 9.2). The port is one of all ephemeral ports, or one of
// portsKept if the spoofer finds the open ports within portAge. So a port serves
// only a few queries, and at a low rate each query has its own port. Above the limit
// of ports, queries share them.
const (
	portsKept = 32              // idle ports that must be open before one is used again
	portUses  = 32              // queries from one port
	portAge   = 2 * time.Second // a port is not used again after this time
)

// maxDatagram is the largest reply read from a UDP socket, in bytes. It exceeds
// udpSize, because some servers ignore that size. A longer reply counts as
// truncated.
const maxDatagram = 4096

// ports holds the UDP sockets to one server.
type ports struct {
	server *server

	mu      sync.Mutex
	all     []*port
	idle    []*port // the ports without a waiting query
	opening int     // ports being opened, not in all yet
	closed  bool    // no port is kept idle
}

// port is a connected UDP socket. ports.mu guards its fields, except constant ones
// and those of read.
type port struct {
	set     *ports
	conn    net.Conn
	raw     syscall.RawConn // nil: conn is no socket
	born    time.Time
	uses    int
	waiting idSet
	err     error // why it was closed; nil: it is open

	expected atomic.Int32 // length of waiting

	// used by read only
	onRead func(fd uintptr) bool
	buf    *[maxDatagram]byte
	n      int // bytes in buf
	errno  syscall.Errno
	polled bool // receive was called since read waited last
}

var buffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// send sends q from a port and registers it there.
func (ps *ports) send(q *query, now time.Time) error {
	pt, err := ps.take(q, now)
	if err != nil {
		return err
	}
	buf := buffers.Get().(*[maxDatagram]byte)
	defer buffers.Put(buf)
	b := q.pack(buf[:0])[2:]
	if ps.server.pool.cfg.Tap != nil { // before the reply can come
		q.tap(pt.conn, time.Time{}, b)
	}
	if pt.raw == nil {
		_, err = pt.conn.Write(b)
	} else {
		var errno syscall.Errno
		err = pt.raw.Control(func(fd uintptr) {
			_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		})
		if err == nil && errno != 0 {
			err = errno
		}
	}
	if err == nil {
		return nil
	}
	if !isOurs(err) {
		err = pt.fail(err)
	}
	pt.release(q, false)
	return err
}

// take registers q on a port: a random idle one if enough are open, else a new one.
// At the limit of ports it takes a shared one.
func (ps *ports) take(q *query, now time.Time) (*port, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	limit := ps.server.pool.share.Load().Sockets
	pt := ps.random(now, limit)
	if pt != nil {
		ps.server.metrics.conn(overUDP, true)
	} else {
		ps.server.metrics.conn(overUDP, false)
		ps.opening++
		ps.mu.Unlock()
		c, err := ps.server.pool.cfg.Dialer.DialContext(context.Background(), "udp", ps.server.to)
		ps.mu.Lock()
		ps.opening--
		switch {
		case err == nil:
			pt = ps.open(c, now)
		case isOurs(err) && len(ps.all) > 0: // no more file descriptors
			pt = ps.all[randomBelow(len(ps.all))]
			ps.idle = slices.DeleteFunc(ps.idle, func(o *port) bool { return o == pt })
		default:
			return nil, err
		}
	}
	pt.uses++
	if err := pt.waiting.add(q); err != nil {
		return nil, err
	}
	pt.expected.Add(1)
	q.via = pt
	return pt, nil
}

// random returns an open port, or nil for a new one; ps.mu is held.
func (ps *ports) random(now time.Time, limit int) *port {
	full := len(ps.all)+ps.opening >= limit
	for len(ps.idle) >= portsKept || full && len(ps.idle) > 0 {
		i := randomBelow(len(ps.idle))
		pt := ps.idle[i]
		if now.Sub(pt.born) < portAge {
			ps.idle = slices.Delete(ps.idle, i, i+1)
			return pt
		}
		ps.close(pt, net.ErrClosed)
		full = len(ps.all)+ps.opening >= limit
	}
	if !full || len(ps.all) == 0 {
		return nil
	}
	pt := ps.all[randomBelow(len(ps.all))]
	for range 3 { // a young one if there are some
		if now.Sub(pt.born) < portAge {
			break
		}
		pt = ps.all[randomBelow(len(ps.all))]
	}
	return pt
}

// open adds a port and starts its reader; ps.mu is held.
func (ps *ports) open(c net.Conn, now time.Time) *port {
	pt := &port{set: ps, conn: c, born: now, waiting: make(idSet)}
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			pt.raw, pt.onRead = raw, pt.receive
		}
	}
	ps.all = append(ps.all, pt)
	go pt.read()
	return pt
}

// release ends the wait of q. If no other query waits on the port, the port becomes
// idle, or is closed if it is too old.
func (pt *port) release(q *query, answered bool) {
	now, ps := time.Now(), pt.set
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q.via = nil
	if pt.err != nil {
		return
	}
	delete(pt.waiting, q.id)
	pt.expected.Add(-1)
	if !answered {
		pt.uses = portUses // a late reply must not meet a new query
	}
	switch {
	case len(pt.waiting) > 0:
	case ps.closed || pt.uses >= portUses || len(ps.idle) >= 8*portsKept || now.Sub(pt.born) >= portAge:
		ps.close(pt, net.ErrClosed)
	default:
		ps.idle = append(ps.idle, pt)
		if len(ps.idle) == 1 {
			ps.server.pool.wakeRun()
		}
	}
}

// close closes and removes pt; ps.mu is held. Its reader ends.
func (ps *ports) close(pt *port, err error) {
	pt.err = err
	_ = pt.conn.Close()
	same := func(o *port) bool { return o == pt }
	ps.all = slices.DeleteFunc(ps.all, same)
	ps.idle = slices.DeleteFunc(ps.idle, same)
}

// expire closes the idle ports that are too old and returns when the next one
// will be.
func (ps *ports) expire(now time.Time) (next time.Time, left bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, pt := range slices.Clone(ps.idle) {
		end := pt.born.Add(portAge)
		if !end.After(now) {
			ps.close(pt, net.ErrClosed)
		} else if !left || end.Before(next) {
			next, left = end, true
		}
	}
	return next, left
}

// retire closes all idle ports, and from now on each port that becomes idle.
func (ps *ports) retire() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.closed = true
	for _, pt := range slices.Clone(ps.idle) {
		ps.close(pt, net.ErrClosed)
	}
}

// fail closes the port because of err, unless it is closed already. It returns the
// error that closed it. Its reader fails the queries that wait on it.
func (pt *port) fail(err error) error {
	pt.set.mu.Lock()
	defer pt.set.mu.Unlock()
	if pt.err == nil {
		pt.set.close(pt, err)
	}
	return pt.err
}

// read gives each datagram to its query until the port is closed. Then it fails the
// queries that still wait.
func (pt *port) read() {
	var err error
	for err == nil {
		if pt.raw == nil {
			pt.buf = buffers.Get().(*[maxDatagram]byte)
			pt.n, err = pt.conn.Read(pt.buf[:])
		} else if pt.polled, err = false, pt.raw.Read(pt.onRead); err == nil && pt.errno != 0 {
			err = pt.errno
		}
		if err == nil {
			pt.handle(pt.buf, pt.n)
		}
		if pt.buf != nil {
			buffers.Put(pt.buf)
			pt.buf = nil
		}
	}
	err = pt.fail(err)
	pt.set.mu.Lock()
	waiting := pt.waiting
	pt.waiting = nil
	pt.set.mu.Unlock()
	for _, q := range waiting {
		q.a.failed(q, err)
	}
}

// receive reads a datagram if there is one. It holds a buffer only then. If no query
// waits, receive reads nothing: the poller is armed, and a reply to the next query
// wakes it. receive must not lock ports.mu: the goroutine that closes the socket
// holds that lock and waits for receive.
func (pt *port) receive(fd uintptr) bool {
	if woken := pt.polled; !woken {
		pt.polled = true
		if pt.expected.Load() == 0 {
			return false
		}
	}
	buf := buffers.Get().(*[maxDatagram]byte)
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&buf[0])), maxDatagram, unix.MSG_DONTWAIT, 0, 0)
	pt.n, pt.errno = int(n), errno
	if errno != 0 {
		buffers.Put(buf)
		return errno != unix.EAGAIN
	}
	pt.buf = buf
	return true
}

// handle ignores everything but replies, RFC 5452 section 9.1.
func (pt *port) handle(buf *[maxDatagram]byte, n int) {
	b := buf[:n]
	if n == len(buf) {
		b[2] |= 0x02 // the rest of the datagram is lost
	}
	var q *query
	if n >= 2 {
		pt.set.mu.Lock()
		q = pt.waiting[binary.BigEndian.Uint16(b)]
		pt.set.mu.Unlock()
	}
	if q == nil {
		pt.set.server.metrics.ignore(unasked(b))
		return
	}
	m, v := q.match(b)
	if v != accepted {
		q.s.metrics.ignore(v)
		return
	}
	if q.s.pool.cfg.Tap != nil {
		q.tap(pt.conn, time.Now(), b)
	}
	q.a.replied(q, m)
}

// randomBelow returns an unpredictable number from 0 to n-1. n is at most 65,536.
func randomBelow(n int) int {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return int(uint64(b[0])<<24|uint64(b[1])<<16|uint64(b[2])<<8|uint64(b[3])) * n >> 32
}
