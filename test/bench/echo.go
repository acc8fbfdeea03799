package main

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// echo is the lower bound: it sets QR in every datagram to addr and sends it
// back, in batches, without parsing it.
func echo(addr string) error {
	pc, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return err
	}
	defer pc.Close()
	raw, err := pc.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	b := newBatch(true)
	var n, sent int
	var errno unix.Errno
	onRead := func(fd uintptr) bool {
		n, errno = b.recv(fd, batchSize)
		return errno != unix.EAGAIN
	}
	onSend := func(fd uintptr) bool {
		var k int
		k, errno = b.send(fd, sent, n)
		sent += k
		return errno != unix.EAGAIN
	}
	for {
		if err := raw.Read(onRead); err != nil {
			return err
		}
		b.makeReplies(n)
		for sent = 0; sent < n && errno == 0; {
			if err := raw.Write(onSend); err != nil {
				return err
			}
		}
		if errno != 0 && errno != unix.EINTR && errno != unix.ECONNREFUSED {
			return fmt.Errorf("echo on %s: %w", addr, errno)
		}
		b.restore(n)
	}
}

// restore resets the first n datagrams to their full buffers.
func (b *batch) restore(n int) {
	for i := range n {
		b.set(i, b.bufs[i][:])
	}
}

// makeReplies makes replies of the n received datagrams.
func (b *batch) makeReplies(n int) {
	for i := range n {
		p := b.bufs[i][:max(12, b.hdrs[i].n)]
		p[2] |= 0x80 // QR, RFC 1035 section 4.1.1
		b.set(i, p)
	}
}
