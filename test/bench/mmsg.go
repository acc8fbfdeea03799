package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	batchSize = 64  // maximum of datagrams per system call
	bufLen    = 512 // bytes; without EDNS no answer is longer
)

// mmsghdr mirrors struct mmsghdr of the kernel's include/linux/socket.h on 64-bit
// machines.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// This fails to compile on other than 64-bit machines, where the layout differs.
const _ = -(unsafe.Sizeof(mmsghdr{}) ^ 64)

// batch holds the headers of one recvmmsg or sendmmsg. It has pointers into
// itself and must not be copied.
type batch struct {
	hdrs  [batchSize]mmsghdr
	iovs  [batchSize]unix.Iovec
	names [batchSize]unix.RawSockaddrInet4
	bufs  [batchSize][bufLen]byte
}

// newBatch makes a batch for receiving. named keeps the peers' addresses, which a
// connected socket does not need.
func newBatch(named bool) *batch {
	b := new(batch)
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		if named {
			h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		}
		b.set(i, b.bufs[i][:])
	}
	return b
}

// set makes p the buffer of the i-th datagram.
func (b *batch) set(i int, p []byte) {
	b.iovs[i].Base = &p[0]
	b.iovs[i].SetLen(len(p))
}

// datagram is the i-th received datagram.
func (b *batch) datagram(i int) []byte { return b.bufs[i][:b.hdrs[i].n] }

// recv receives at most n datagrams without blocking. The raw system call does not wake
// the runtime's monitor thread.
func (b *batch) recv(fd uintptr, n int) (int, unix.Errno) {
	for i := range b.hdrs[:n] {
		b.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet4
		if b.hdrs[i].hdr.Name == nil {
			b.hdrs[i].hdr.Namelen = 0
		}
	}
	return b.call(unix.SYS_RECVMMSG, fd, 0, n)
}

// send sends datagrams from to to-1 without blocking and returns their number.
func (b *batch) send(fd uintptr, from, to int) (int, unix.Errno) {
	return b.call(unix.SYS_SENDMMSG, fd, from, to)
}

func (b *batch) call(trap, fd uintptr, from, to int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(&b.hdrs[from])),
		uintptr(to-from), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
