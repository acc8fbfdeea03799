package server

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// datagram returns the i-th datagram received. It returns false if the datagram
// did not fit.
func (b *batch) datagram(i int) ([]byte, bool) {
	return b.slots[i].in[:min(int(b.rx[i].n), recvBufLen)], b.rx[i].hdr.Flags&unix.MSG_TRUNC == 0
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
// bound to one address. A second call returns the same.
func (b *batch) control(i int) []byte {
	if b.rx[i].hdr.Control == nil {
		return nil
	}
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

// client returns the source of the i-th datagram.
func (b *batch) client(i int) netip.AddrPort {
	sa := &b.slots[i].name
	port := (*[2]byte)(unsafe.Pointer(&sa.Port))
	p := binary.BigEndian.Uint16(port[:])
	if sa.Family == unix.AF_INET {
		in4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), p)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), p)
}
