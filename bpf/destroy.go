package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants of sock_diag(7) that golang.org/x/sys lacks.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21
	tcpEstablished   = 1 // also the state of a connected UDP socket
	tcpSynSent       = 2
)

// diagID mirrors struct inet_diag_sockid: addresses and ports in network byte
// order.
type diagID [48]byte

const (
	diagRequestLen = 8 + len(diagID{}) // struct inet_diag_req_v2
	diagMessageLen = 4 + len(diagID{}) // start of struct inet_diag_msg
)

// Protocol is a transport, an IPPROTO number.
type Protocol uint8

const (
	UDP Protocol = unix.IPPROTO_UDP
	TCP Protocol = unix.IPPROTO_TCP
)

// destroySockets destroys the sockets that are connected to peer in a network
// namespace, or connect to it, and returns their number. The next system call
// on such a socket fails with ECONNABORTED, so that a resolver retries at once. A nil
// netns means that of the calling thread. It needs CAP_NET_ADMIN there. Without
// CONFIG_INET_DIAG_DESTROY or udp_diag in the kernel it fails with ErrKernel.
func destroySockets(netns *os.File, peer netip.AddrPort, protocols ...Protocol) (int, error) {
	peer = unmap(peer)
	if err := checkUnicast(peer); err != nil {
		return 0, fmt.Errorf("destroy sockets: peer %w", err)
	}
	var cfg netlink.Config
	if netns != nil {
		cfg.NetNS = int(netns.Fd())
	}
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &cfg)
	if err != nil {
		return 0, fmt.Errorf("destroy sockets: open netlink: %w", err)
	}
	defer conn.Close()
	families := []uint8{unix.AF_INET6}
	if peer.Addr().Is4() { // IPv6 sockets have v4-mapped peers
		families = []uint8{unix.AF_INET, unix.AF_INET6}
	}
	destroyed := 0
	var errs []error
	for _, family := range families {
		for _, protocol := range protocols {
			n, err := destroyKind(conn, diagKind{family, protocol}, peer)
			destroyed += n
			errs = append(errs, err) // the kernel may lack a module for one protocol only
		}
	}
	if err := errors.Join(errs...); err != nil {
		return destroyed, fmt.Errorf("destroy sockets to %s: %w", peer, err)
	}
	return destroyed, nil
}

// diagKind is the family, AF_*, and the protocol of sockets.
type diagKind struct {
	family   uint8
	protocol Protocol
}

func destroyKind(conn *netlink.Conn, kind diagKind, peer netip.AddrPort) (int, error) {
	ids, err := connected(conn, kind)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("list: no udp_diag or tcp_diag: %w (%w)", ErrKernel, err)
	}
	if err != nil {
		return 0, fmt.Errorf("list: %w", err)
	}
	destroyed := 0
	for _, id := range ids {
		if id.peer(kind.family) != peer {
			continue
		}
		_, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: sockDestroy, Flags: netlink.Request | netlink.Acknowledge},
			Data:   diagRequest(kind, id),
		})
		if errors.Is(err, os.ErrNotExist) { // the owner closed it
			continue
		}
		if err != nil {
			return destroyed, explain("destroy", err)
		}
		destroyed++
	}
	return destroyed, nil
}

func connected(conn *netlink.Conn, kind diagKind) ([]diagID, error) {
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
		Data:   diagRequest(kind, diagID{}),
	})
	if err != nil {
		return nil, err
	}
	var ids []diagID
	for _, m := range replies {
		if len(m.Data) < diagMessageLen {
			return nil, fmt.Errorf("message of %d bytes", len(m.Data))
		}
		if state := m.Data[1]; state == tcpEstablished || state == tcpSynSent {
			ids = append(ids, diagID(m.Data[4:diagMessageLen]))
		}
	}
	return ids, nil
}

// diagRequest returns a struct inet_diag_req_v2. The id includes the socket's cookie,
// so that it matches no other socket.
func diagRequest(kind diagKind, id diagID) []byte {
	req := make([]byte, 8, diagRequestLen)
	req[0] = kind.family
	req[1] = uint8(kind.protocol)
	binary.NativeEndian.PutUint32(req[4:], 1<<tcpEstablished|1<<tcpSynSent)
	return append(req, id[:]...)
}

func (id *diagID) peer(family uint8) netip.AddrPort {
	port := binary.BigEndian.Uint16(id[2:])
	addr := netip.AddrFrom16([16]byte(id[20:36])).Unmap()
	if family == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(id[20:24]))
	}
	return netip.AddrPortFrom(addr, port)
}
