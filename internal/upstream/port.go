package upstream

import (
	"crypto/rand"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A query goes out from a random one of many UDP ports, which nobody else has a
// query under way on. A spoofer has to guess the ID and the port (RFC 5452
// section 9.2): one of all ephemeral ones as long as he does not know which are
// open, and one of portsKept if he has found out, which he has portAge for. So
// a port is used for a few queries only, and where few are asked each has a
// port of its own.
const (
	portsKept = 32              // idle ports to choose from before any is used again
	portUses  = 32              // queries from one port
	portAge   = 2 * time.Second // after which a port is not used again
)

// port is a connected UDP socket. One query at a time is under way on it.
type port struct {
	conn net.Conn
	born time.Time
	uses int

	raw    syscall.RawConn // nil: conn is no socket
	onRead func(fd uintptr) bool
	out    []byte // the query, until it is sent
	buf    *[maxDatagram]byte
	n      int // octets in buf
	errno  syscall.Errno
}

func newPort(c net.Conn, now time.Time) *port {
	pt := &port{conn: c, born: now}
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			pt.raw, pt.onRead = raw, pt.io
		}
	}
	return pt
}

// io sends what is to be sent and then waits for a datagram. Because the wait
// was announced to the poller before the query went out, no reply is missed,
// and nothing is read in vain.
func (pt *port) io(fd uintptr) bool {
	if pt.out != nil {
		_, _, pt.errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&pt.out[0])), uintptr(len(pt.out)), unix.MSG_DONTWAIT, 0, 0)
		pt.out = nil
		return pt.errno != 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&pt.buf[0])), maxDatagram, unix.MSG_DONTWAIT, 0, 0)
	pt.n, pt.errno = int(n), errno
	return errno != unix.EAGAIN && errno != unix.EINTR
}

// read sends out, if there is any, and waits for the next datagram, which it
// reads into buf. The deadline is that of conn. If it was over beforehand
// pt.out is still set.
func (pt *port) read(out []byte, buf *[maxDatagram]byte) (int, error) {
	if pt.raw == nil {
		if out != nil {
			if _, err := pt.conn.Write(out); err != nil {
				return 0, err
			}
		}
		return pt.conn.Read(buf[:])
	}
	pt.out, pt.buf = out, buf
	err := pt.raw.Read(pt.onRead)
	pt.buf = nil
	if err != nil {
		return 0, err
	}
	if pt.errno != 0 {
		return 0, pt.errno
	}
	return pt.n, nil
}

// portStock holds the idle ports to one server.
type portStock struct {
	mu     sync.Mutex
	ports  []*port
	closed bool
}

// take returns a random port of those that are idle and not too old, unless
// there are too few to choose from: then, nil.
func (st *portStock) take(now time.Time) *port {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.ports) >= portsKept {
		i := int(randomByte()) % len(st.ports)
		pt := st.ports[i]
		last := len(st.ports) - 1
		st.ports[i], st.ports[last] = st.ports[last], nil
		st.ports = st.ports[:last]
		if now.Sub(pt.born) < portAge {
			return pt
		}
		_ = pt.conn.Close()
	}
	return nil
}

// put keeps a port on which nothing is under way, and reports whether it is the
// only one. One that has served its time is closed.
func (st *portStock) put(pt *port, now time.Time) (first bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || pt.uses >= portUses || len(st.ports) >= 8*portsKept || now.Sub(pt.born) >= portAge {
		_ = pt.conn.Close()
		return false
	}
	st.ports = append(st.ports, pt)
	return len(st.ports) == 1
}

// expire closes the ports that are too old and tells when the next one is.
func (st *portStock) expire(now time.Time) (next time.Time, left bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	kept := st.ports[:0]
	for _, pt := range st.ports {
		end := pt.born.Add(portAge)
		if !end.After(now) {
			_ = pt.conn.Close()
			continue
		}
		kept = append(kept, pt)
		if !left || end.Before(next) {
			next, left = end, true
		}
	}
	clear(st.ports[len(kept):])
	st.ports = kept
	return next, left
}

// close closes all ports and those that are yet to come.
func (st *portStock) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	for _, pt := range st.ports {
		_ = pt.conn.Close()
	}
	st.ports = nil
}

func randomByte() byte {
	var b [1]byte
	_, _ = rand.Read(b[:]) // never fails
	return b[0]
}
