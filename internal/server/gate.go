package server

import (
	"net"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gate keeps out of an address what comes in by certain interfaces: it is
// dropped without a reply, which could go to somebody who has not asked, and
// counted. What came in by an unknown interface is kept out, too. What the host
// sends to itself from that very address comes in: the kernel says of it that it
// came by the interface that has the address, and to nobody else would a reply
// go. Its methods are safe for concurrent use.
type Gate struct {
	closed  atomic.Pointer[map[int]bool]
	refused atomic.Uint64
}

// NewGate makes a gate that keeps out everything, until Close is called.
func NewGate() *Gate { return new(Gate) }

// Close replaces the indexes of the interfaces that are kept out.
func (g *Gate) Close(interfaces []int) {
	closed := make(map[int]bool, len(interfaces))
	for _, i := range interfaces {
		closed[i] = true
	}
	g.closed.Store(&closed)
}

// Refused is the number of datagrams and connections that were kept out.
func (g *Gate) Refused() uint64 { return g.refused.Load() }

// refuses also counts. self is the address that was asked.
func (g *Gate) refuses(ifindex int, from, self netip.Addr) bool {
	closed := g.closed.Load()
	if closed != nil && ifindex > 0 && (!(*closed)[ifindex] || from == self) {
		return false
	}
	g.refused.Add(1)
	return true
}

// pktinfoIndex returns the interface index of a control message that has an
// in_pktinfo or in6_pktinfo, and 0 for others.
func pktinfoIndex(ctl []byte) int {
	if len(ctl) < unix.SizeofCmsghdr {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0]))
	data := ctl[unix.SizeofCmsghdr:]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		return int((*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Ifindex)
	case h.Level == unix.IPPROTO_IPV6 && (h.Type == unix.IPV6_PKTINFO || h.Type == unix.IPV6_2292PKTINFO) && len(data) >= unix.SizeofInet6Pktinfo:
		return int((*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Ifindex)
	}
	return 0
}

// tcpArrival returns the index of the interface that a connection came in by, 0
// if the kernel does not say: ip(7), IP_PKTOPTIONS, and its older sibling for
// IPv6 (RFC 2292 §4.1), on a socket that asks for packet information.
func tcpArrival(c *net.TCPConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	index := 0
	_ = raw.Control(func(fd uintptr) {
		level, name := unix.IPPROTO_IP, unix.IP_PKTOPTIONS
		if domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_INET6 {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_2292PKTOPTIONS
		}
		// The first message is the packet information, where there is any.
		var ctl struct {
			_    [0]unix.Cmsghdr // alignment
			data [128]byte
		}
		n := uint32(len(ctl.data))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(name),
			uintptr(unsafe.Pointer(&ctl.data[0])), uintptr(unsafe.Pointer(&n)), 0)
		if errno == 0 {
			index = pktinfoIndex(ctl.data[:n])
		}
	})
	return index
}
