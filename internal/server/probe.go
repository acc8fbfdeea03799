package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/tick"
)

// probePorts is the number of a Prober's sockets per worker. The kernel selects
// the worker's socket by a hash of the addresses. With this many, a worker
// without a probe is rare.
const probePorts = 4

// probeZone exists only where HeartbeatZone is served.
const probeZone = "heartbeat.nodens.invalid."

// HeartbeatZone is the zone that a Prober queries. It has no cache, so each query
// takes the path of a miss. Its queries are not counted, because they do not come
// from clients.
func HeartbeatZone() *Zone {
	return &Zone{Name: probeZone, Sources: []NamedSource{{Name: "heartbeat", Source: heartbeat{}}}, uncounted: true}
}

// heartbeat is the source of HeartbeatZone.
type heartbeat struct{}

func (heartbeat) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	return new(dns.Msg).SetReply(m), nil
}

// Prober queries an address that serves HeartbeatZone. It uses its open sockets in
// turn, so that it reaches all workers. After a query without a reply it stays at
// that socket: if one worker hangs, all further probes fail. It is not safe for
// concurrent use. An idle process probes too, so a probe wakes few threads.
type Prober struct {
	conns []probeConn
	next  int
	late  *tick.Timer // interrupts Ask
	query []byte
	reply [recvBufLen]byte
}

type probeConn struct {
	*net.UDPConn
	raw syscall.RawConn
}

// ProberFiles returns the number of file descriptors of a Prober.
func ProberFiles(workers int) int { return probePorts*workers + 1 } // with its timer

// NewProber opens the sockets for probes of addr. workers is the number of
// readers of that address.
func NewProber(addr netip.AddrPort, workers int) (*Prober, error) {
	m := new(dns.Msg)
	m.SetQuestion(probeZone, dns.TypeTXT)
	query, err := m.Pack()
	if err != nil {
		return nil, err
	}
	p := &Prober{query: query, late: tick.New()}
	for range probePorts * workers {
		// A Gate allows queries from the address itself. The kernel might choose
		// another source address.
		from := &net.UDPAddr{IP: addr.Addr().AsSlice()}
		c, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open probe of %v: %w", addr, err), p.Close())
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, errors.Join(err, c.Close(), p.Close())
		}
		p.conns = append(p.conns, probeConn{c, raw})
	}
	go p.interrupt()
	return p, nil
}

// interrupt ends a read that lasts too long, until Close.
func (p *Prober) interrupt() {
	for range p.late.C {
		for _, c := range p.conns {
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// Sockets is the number of sockets. After that many replies all workers have
// replied.
func (p *Prober) Sockets() int { return len(p.conns) }

// Ask sends one query and waits for its reply. It also accepts the reply to one
// of the last few queries that got none. Without a reply in time, the error wraps
// os.ErrDeadlineExceeded.
func (p *Prober) Ask(wait time.Duration) error {
	const few = 4
	c := p.conns[p.next]
	if err := c.discardLate(p.reply[:]); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil { // clears that of interrupt
		return err
	}
	p.late.Reset(wait)
	defer p.late.Halt()
	id := binary.BigEndian.Uint16(p.query) + 1
	binary.BigEndian.PutUint16(p.query, id)
	if err := tick.Send(c.raw, p.query); err != nil {
		return err
	}
	for {
		n, err := c.receive(p.reply[:])
		if err != nil {
			return err
		}
		if n >= 2 && id-binary.BigEndian.Uint16(p.reply[:]) < few {
			p.next = (p.next + 1) % len(p.conns)
			return nil
		}
	}
}

// discardLate drops late replies, because they do not show the present state.
func (c probeConn) discardLate(buf []byte) error {
	return c.raw.Control(func(fd uintptr) {
		for {
			if _, errno := receive(fd, buf); errno != 0 {
				return
			}
		}
	})
}

// receive waits for a datagram and returns its length.
func (c probeConn) receive(buf []byte) (n int, err error) {
	var errno syscall.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		n, errno = receive(fd, buf)
		return errno != unix.EAGAIN
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("recvfrom", errno)
	}
	return n, err
}

// receive does not wait, see tick.Send.
func receive(fd uintptr, buf []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// Close closes the sockets. A concurrent Ask fails.
func (p *Prober) Close() error {
	var errs []error
	for _, c := range p.conns {
		if err := c.UDPConn.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	p.late.Stop()
	return errors.Join(errs...)
}
