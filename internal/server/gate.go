package server

import (
	"net"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gate blocks queries to an address by the interface on which they arrive. A
// blocked query is dropped and counted. It gets no reply, because its source
// address may be forged. A query from an unknown interface is blocked, too. A
// query from the address itself is never blocked: it comes from this host, and
// the kernel reports the interface that has the address. The methods are safe
// for concurrent use.
type Gate struct {
	blocked atomic.Pointer[map[int]bool] // nil: all
	refused atomic.Uint64
}

// NewGate makes a gate that blocks all interfaces until SetBlocked is called.
func NewGate() *Gate { return new(Gate) }

// SetBlocked replaces the indexes of the blocked interfaces.
func (g *Gate) SetBlocked(interfaces []int) {
	blocked := make(map[int]bool, len(interfaces))
	for _, i := range interfaces {
		blocked[i] = true
	}
	g.blocked.Store(&blocked)
}

// Refused is the number of blocked datagrams and connections.
func (g *Gate) Refused() uint64 { return g.refused.Load() }

// refuses reports whether a query from an address to self is blocked, and counts
// it.
func (g *Gate) refuses(ifindex int, from, self netip.Addr) bool {
	blocked := g.blocked.Load()
	if blocked != nil && ifindex > 0 && (!(*blocked)[ifindex] || from == self) {
		return false
	}
	g.refused.Add(1)
	return true
}

// pktinfoIndex returns the interface index in a control message with an
// in_pktinfo or in6_pktinfo, and 0 for other messages.
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

// tcpArrival returns the index of the interface on which a connection arrived,
// 0 if it is unknown. The listening socket must have packet information on. See
// IP_PKTOPTIONS in ip(7), and RFC 2292 §4.1 for IPv6.
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
		// The packet information is the first message, if it is there.
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
