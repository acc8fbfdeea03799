package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/querystats"
)

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
	copies promotion // to the listener's Fastpath
	misses []*job    // of the batch
	shed   bool      // misses of busy zones are refused, see overloaded

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
	pktinfo := lis.addr.Addr().IsUnspecified() || lis.gate != nil || lis.fast != nil
	lc := net.ListenConfig{Control: SharePort(func(fd int) error {
		if pktinfo {
			if err := wantPktinfo(fd, lis.addr.Addr()); err != nil {
				return err
			}
		}
		setReceiveBuffer(fd, s.queue)
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
	u.copies = promotion{lis: lis, q: &u.q}
	u.mem.batch, u.mem.tallies = true, make([]tally, 0, batchSize)
	u.mem.samples = make([]querystats.Sample, 0, batchSize)
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

// setReceiveBuffer makes the receive queue of a socket as large as queue bytes, if
// the process may. The kernel doubles the value that it gets. 8 MiB hold about ten
// thousand queries while the process is not scheduled.
func setReceiveBuffer(fd, queue int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue/2) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue/2)
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
				u.shed = false // the queue is empty
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
	u.queued, u.shed = 0, n == batchSize && (u.shed || overloaded(fd))
	for i := range n {
		u.handle(i, now)
	}
	if u.queued > 0 {
		u.sendHits(fd, now)
	}
	for i, j := range u.misses {
		u.misses[i] = nil
		j.start(u.lis)
	}
	u.misses = u.misses[:0]
}

// recoverPanic, deferred, prevents a panic from ending the process.
func (s *resolver) recoverPanic(what string) {
	if p := recover(); p != nil {
		s.reportPanic(what, p)
	}
}

// overloaded reports whether half of the receive queue of fd is in use. Then misses of
// busy zones are refused until it is empty. Refusing one costs a tenth of resolving
// it, so that hits are answered and the kernel drops fewer queries. The kernel counts up
// to a quarter of the queue as used after it was read. See SO_MEMINFO in
// net/core/sock.c and udp_rmem_release in net/ipv4/udp.c.
func overloaded(fd uintptr) bool {
	var info [unix.SK_MEMINFO_VARS]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0 && info[unix.SK_MEMINFO_RMEM_ALLOC] > info[unix.SK_MEMINFO_RCVBUF]/2
}

// sendHits sends the queued replies of a batch read at the given time.
func (u *udpSocket) sendHits(fd uintptr, now time.Time) {
	end := u.srv.clock()
	for i := range u.mem.tallies { // before the replies are sent
		u.mem.tallies[i].took = end.Sub(now)
		u.mem.tallies[i].count(u.reader)
	}
	u.mem.tallies = u.mem.tallies[:0]
	if len(u.mem.samples) > 0 {
		u.srv.metrics.stats.Add(u.mem.samples, end.Sub(now), end)
		u.mem.samples = u.mem.samples[:0]
	}
	u.sent = 0
	if u.sendQueued(fd) {
		return
	}
	if err := u.raw.Write(u.onSend); err != nil && !u.lis.closing.Load() {
		u.srv.log.Debug("send replies", "listener", u.lis, "error", err)
	}
}

// handle answers the i-th datagram of the batch or starts its resolution.
func (u *udpSocket) handle(i int, now time.Time) {
	msg, client, whole := u.b.datagram(i)
	if g := u.lis.gate; g != nil && g.refuses(u.b.arrival(i), client.Addr(), u.lis.addr.Addr()) {
		return
	}
	q := &u.q
	q.tcp, q.client, q.start, q.memory = false, client, now, &u.mem
	v := q.parse(msg)
	if v == discard {
		u.srv.metrics.discarded.Add(1)
		return
	}
	if !whole {
		v = formErr
	}
	s := &u.b.slots[i]
	out, ok := u.srv.tryHit(s.out[:0], u.lis, u.reader, q, v)
	if !ok {
		err := error(refusedAll)
		if !u.shed || !u.srv.misses.busy(q.zone) {
			err = u.srv.misses.acquire(q.zone, q.client.Addr(), forClient)
		}
		if err == nil { // it is resolved after the hits of the batch
			j := u.srv.jobs.Get().(*job)
			q.copyTo(&j.q)
			j.sock, j.sa, j.saLen, j.ctlLen = u, s.name, uint8(u.b.rx[i].hdr.Namelen), 0
			if u.b.rx[i].hdr.Control != nil {
				if j.control == nil {
					j.control = new([controlLen]byte)
				}
				j.ctlLen = uint8(copy(j.control[:], u.b.control(i)))
			}
			u.misses = append(u.misses, j)
			return
		}
		out = u.srv.reject(out, u.reader, q, err)
	} else if u.lis.fast != nil {
		u.copies.promote(u.b.arrival(i))
	}
	s.out = out
	u.b.queue(u.queued, i)
	u.queued++
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
	h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&j.sa)), Namelen: uint32(j.saLen), Iov: &vec}
	h.SetIovlen(1)
	if j.ctlLen > 0 {
		h.Control = &j.control[0]
		h.SetControllen(int(j.ctlLen))
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
		// A program that selects our sockets only, see EachPort, selects connected
		// ones, too. Usually there is none.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
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

const (
	batchSize  = 64
	recvBufLen = 2048 // bytes; a longer query gets FORMERR
	// controlLen is the size in bytes of one in_pktinfo or in6_pktinfo control message.
	controlLen = 40
)

// mmsghdr mirrors struct mmsghdr of the kernel's include/linux/socket.h on
// 64-bit machines.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// The layout above holds on 64-bit machines only; elsewhere this does not
// compile.
const _ = -(unsafe.Sizeof(mmsghdr{}) ^ 64)

// slot is the memory of one query and its reply.
type slot struct {
	name    unix.RawSockaddrInet6 // large enough for either family
	control [controlLen]byte
	in      [recvBufLen]byte
	inVec   unix.Iovec
	out     []byte
	outVec  unix.Iovec
}

// batch is the memory of one recvmmsg and of the sendmmsg that answers it. It
// must not be copied, because it has pointers into itself.
type batch struct {
	slots [batchSize]slot
	rx    [batchSize]mmsghdr
	tx    [batchSize]mmsghdr
}

func newBatch(pktinfo bool) *batch {
	b := new(batch)
	for i := range b.slots {
		s := &b.slots[i]
		s.inVec.Base = &s.in[0]
		s.inVec.SetLen(len(s.in))
		h := &b.rx[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&s.name))
		h.Iov = &s.inVec
		h.SetIovlen(1)
		if pktinfo {
			h.Control = &s.control[0]
		}
	}
	return b
}

// recv reads up to batchSize datagrams without blocking. It uses the raw system
// call, because the ordinary one wakes the runtime's monitor thread on every
// query of a quiet node.
func (b *batch) recv(fd uintptr) (int, syscall.Errno) {
	for i := range b.rx {
		b.rx[i].hdr.Namelen = unix.SizeofSockaddrInet6
		if b.rx[i].hdr.Control != nil {
			b.rx[i].hdr.SetControllen(controlLen)
		}
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.rx[0])),
		batchSize, unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// datagram returns the i-th datagram received and its source. whole is false if the
// datagram did not fit.
func (b *batch) datagram(i int) (msg []byte, client netip.AddrPort, whole bool) {
	s, rx := &b.slots[i], &b.rx[i]
	var addr netip.Addr
	if s.name.Family == unix.AF_INET {
		addr = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.name)).Addr)
	} else {
		addr = netip.AddrFrom16(s.name.Addr).Unmap()
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&s.name.Port))[:])
	return s.in[:min(int(rx.n), recvBufLen)], netip.AddrPortFrom(addr, port), rx.hdr.Flags&unix.MSG_TRUNC == 0
}

// queue makes slots[i].out the k-th datagram of the next send. It goes from the
// destination of the i-th datagram to its source.
func (b *batch) queue(k, i int) {
	s, h := &b.slots[i], &b.tx[k].hdr
	s.outVec.Base = &s.out[0]
	s.outVec.SetLen(len(s.out))
	h.Name = (*byte)(unsafe.Pointer(&s.name))
	h.Namelen = b.rx[i].hdr.Namelen
	h.Iov = &s.outVec
	h.SetIovlen(1)
	h.Control = nil
	h.SetControllen(0)
	if b.rx[i].hdr.Control == nil {
		return
	}
	if ctl := b.control(i); len(ctl) > 0 {
		h.Control = &ctl[0]
		h.SetControllen(len(ctl))
	}
}

// send sends tx[from:to] without blocking. It returns the number of datagrams
// sent.
func (b *batch) send(fd uintptr, from, to int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.tx[from])),
		uintptr(to-from), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// control returns the control message for the reply to the i-th datagram: it
// makes the reply's source the datagram's destination. It is empty on a socket
// bound to one address. A second call returns the same. The datagram must have one.
func (b *batch) control(i int) []byte {
	ctl := b.slots[i].control[:b.rx[i].hdr.Controllen]
	if len(ctl) < unix.SizeofCmsghdr {
		return nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0]))
	data := ctl[unix.SizeofCmsghdr:]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
		info.Ifindex = 0
		info.Spec_dst = info.Addr
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
		if a := netip.AddrFrom16(info.Addr); a.Is4In6() || !a.IsLinkLocalUnicast() {
			info.Ifindex = 0
		}
	default:
		return nil
	}
	return ctl
}

// arrival returns the index of the interface on which the i-th datagram arrived,
// 0 if it is unknown. It must not be called after control.
func (b *batch) arrival(i int) int {
	if b.rx[i].hdr.Control == nil {
		return 0
	}
	return pktinfoIndex(b.slots[i].control[:b.rx[i].hdr.Controllen])
}
