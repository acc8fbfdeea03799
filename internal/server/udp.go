package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udpReceiveBuffer is the size in bytes of a socket's receive queue: enough for a
// burst of about ten thousand queries while the process is not scheduled.
const udpReceiveBuffer = 4 << 20

// udpSocket is one of a listener's SO_REUSEPORT sockets. One goroutine reads it.
type udpSocket struct {
	srv    *Server
	lis    *listener
	reader int // index of this socket's counters
	conn   *net.UDPConn
	raw    syscall.RawConn
	b      *batch
	q      Query
	mem    lookupMemory
	misses []*job    // of the batch
	full   time.Time // when the series of full batches began; zero: the last one was not full
	shed   bool      // no misses are resolved: the socket is overloaded

	// Results of the callbacks below. The callbacks are made once, so that
	// waiting for the socket does not allocate.
	got    int
	sent   int
	queued int
	errno  syscall.Errno
	onRead func(fd uintptr) bool
	onSend func(fd uintptr) bool
}

// listenUDP opens one SO_REUSEPORT socket on addr.
func (s *Server) listenUDP(ctx context.Context, lis *listener, reader int) (*udpSocket, error) {
	pktinfo := lis.addr.Addr().IsUnspecified() || lis.gate != nil
	lc := net.ListenConfig{Control: SharePort(func(fd int) error {
		if pktinfo {
			if err := wantPktinfo(fd, lis.addr.Addr()); err != nil {
				return err
			}
		}
		setReceiveBuffer(fd)
		return nil
	})}
	pc, err := lc.ListenPacket(ctx, lis.network("udp"), lis.addr.String())
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	u := &udpSocket{srv: s, lis: lis, reader: reader, conn: conn, raw: raw, b: newBatch(pktinfo)}
	u.mem.batch, u.mem.tallies = true, make([]tally, 0, batchSize)
	u.onRead = u.read
	u.onSend = func(fd uintptr) bool {
		return u.sendQueued(fd)
	}
	return u, nil
}

// SharePort makes a ListenConfig.Control that sets SO_REUSEPORT, so that an old
// and a new process can share the port. Then it calls more, if that is not nil.
func SharePort(more func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if err == nil && more != nil {
				err = more(int(fd))
			}
		}); cerr != nil {
			return cerr
		}
		return err
	}
}

// wantPktinfo requests the destination address of each datagram. A socket on
// [::] also accepts IPv4 and reports mapped addresses.
func wantPktinfo(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
}

// setReceiveBuffer enlarges the receive queue as far as the process may.
func setReceiveBuffer(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpReceiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, udpReceiveBuffer)
	}
}

// serve answers queries until the socket is closed or the listener stops.
func (u *udpSocket) serve() error {
	for {
		if err := u.raw.Read(u.onRead); err != nil {
			if errors.Is(err, net.ErrClosed) || u.lis.closing.Load() {
				return nil
			}
			return fmt.Errorf("read from %v: %w", u.lis, err)
		}
		switch u.errno {
		case unix.EBADF, unix.ENOTSOCK, unix.EINVAL, unix.EFAULT, unix.ENOSYS:
			return fmt.Errorf("read from %v: %w", u.lis, u.errno)
		}
		// Any other errno is the ICMP error for an earlier reply.
	}
}

// read answers batches until the socket is empty. Then it returns false, which
// means wait. A batch that is not full has emptied the socket, so read saves the
// system call that would return EAGAIN. Later datagrams wake the poller.
func (u *udpSocket) read(fd uintptr) bool {
	for {
		if u.got, u.errno = u.b.recv(fd); u.errno != 0 {
			if u.errno == unix.EAGAIN {
				u.full = time.Time{} // the queue is empty
			}
			return u.errno != unix.EAGAIN
		}
		u.answer(fd, u.got)
		if u.lis.closing.Load() {
			return true
		}
		if u.got < batchSize {
			return false
		}
	}
}

// answer handles a batch of n datagrams received from fd. It sends the replies
// of hits together and starts the resolution of misses.
func (u *udpSocket) answer(fd uintptr, n int) {
	defer u.srv.recoverPanic("UDP batch")
	now := u.srv.clock()
	u.queued, u.shed = 0, u.overloaded(n, now)
	for i := range n {
		u.handle(i, now)
	}
	u.sendHits(fd, now)
	for i, j := range u.misses {
		u.misses[i] = nil
		u.srv.start(u.lis, j)
	}
	u.misses = u.misses[:0]
}

// overloadAfter is how long the queue of a socket may stay full before misses are
// refused. Refusing one costs a tenth of resolving it, so that hits are answered
// and the kernel drops no query.
const overloadAfter = 250 * time.Millisecond

// overloaded takes the size of a batch, read at the given time, and reports
// whether all batches have been full for too long.
func (u *udpSocket) overloaded(n int, now time.Time) bool {
	if n < batchSize {
		u.full = time.Time{}
		return false
	}
	if u.full.IsZero() {
		u.full = now
	}
	return now.Sub(u.full) > overloadAfter
}

// sendHits sends the queued replies of a batch read at the given time.
func (u *udpSocket) sendHits(fd uintptr, now time.Time) {
	if u.queued == 0 {
		return
	}
	u.count(u.srv.clock().Sub(now))
	u.sent = 0
	if u.sendQueued(fd) {
		return
	}
	if err := u.raw.Write(u.onSend); err != nil && !u.lis.closing.Load() {
		u.srv.log.Debug("send replies", "listener", u.lis, "error", err)
	}
}

// count counts the replies of the batch before they are sent. took is the time
// since their queries were read.
func (u *udpSocket) count(took time.Duration) {
	for i := range u.mem.tallies {
		t := &u.mem.tallies[i]
		t.took = took
		t.record(u.reader)
	}
	u.mem.tallies = u.mem.tallies[:0]
}

// handle answers the i-th datagram of the batch or starts its resolution.
func (u *udpSocket) handle(i int, now time.Time) {
	if g := u.lis.gate; g != nil && g.refuses(u.b.arrival(i), u.b.client(i).Addr(), u.lis.addr.Addr()) {
		return
	}
	msg, whole := u.b.datagram(i)
	q := &u.q
	q.tcp, q.start, q.memory = false, now, &u.mem
	v := q.parse(msg)
	if v == discard {
		u.srv.metrics.discarded.Add(1)
		return
	}
	if !whole {
		v = formErr
	}
	q.client = u.b.client(i)
	s := &u.b.slots[i]
	out, ok := u.srv.tryHit(s.out[:0], u.lis, u.reader, q, v)
	if !ok {
		err := error(refusedAll)
		if !u.shed {
			err = u.srv.misses.acquire(q.zone, q.client.Addr())
		}
		if err == nil {
			u.miss(i)
			return
		}
		out = u.srv.reject(out, u.reader, q, err)
	}
	s.out = out
	u.b.queue(u.queued, i)
	u.queued++
}

// miss queues the i-th datagram's query, which has a slot. It is resolved after the
// hits of the batch.
func (u *udpSocket) miss(i int) {
	j := u.srv.newJob(&u.q)
	j.sa, j.saLen = u.b.slots[i].name, u.b.rx[i].hdr.Namelen
	j.control = append(j.control[:0], u.b.control(i)...)
	j.sock = u
	u.misses = append(u.misses, j)
}

// sendQueued sends the remaining queued replies. It returns false if the socket
// is full. It skips replies that cannot be sent.
func (u *udpSocket) sendQueued(fd uintptr) bool {
	for u.sent < u.queued {
		n, errno := u.b.send(fd, u.sent, u.queued)
		switch errno {
		case 0:
			u.sent += n
		case unix.EAGAIN:
			return false
		case unix.EINTR:
		default:
			u.srv.metrics.sendErrors.Add(1)
			u.sent++
		}
	}
	return true
}

// reply sends one reply outside of a batch. It may be called concurrently.
func (u *udpSocket) reply(j *job, msg []byte) error {
	vec := unix.Iovec{Base: &msg[0]}
	vec.SetLen(len(msg))
	h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&j.sa)), Namelen: j.saLen, Iov: &vec}
	h.SetIovlen(1)
	if len(j.control) > 0 {
		h.Control = &j.control[0]
		h.SetControllen(len(j.control))
	}
	var errno syscall.Errno
	err := u.raw.Write(func(fd uintptr) bool {
		_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT)
		return errno != unix.EAGAIN
	})
	if err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// handOver stops new queries from reaching the socket. Queued ones stay. It
// connects the socket, because SO_REUSEPORT does not select connected sockets
// (net/core/sock_reuseport.c): another socket on the same address gets all new
// queries.
func (u *udpSocket) handOver() error {
	var err error
	cerr := u.raw.Control(func(fd uintptr) {
		err = unix.Connect(int(fd), u.lis.deadPeer())
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EHOSTUNREACH) {
		err = nil // the host no longer has the address, so no query can arrive
	}
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("hand over %v: %w", u.lis, err)
	}
	return nil
}

// drain answers the queued queries and returns. It must not run concurrently
// with serve.
func (u *udpSocket) drain() {
	for {
		empty := false
		err := u.raw.Read(func(fd uintptr) bool {
			if u.got, u.errno = u.b.recv(fd); u.errno == 0 {
				u.answer(fd, u.got)
			}
			empty = u.errno == unix.EAGAIN
			return true
		})
		if err != nil || empty {
			return
		}
	}
}
