package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
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
// concurrent use.
type Prober struct {
	conns []*net.UDPConn
	next  int
	query []byte
	reply [recvBufLen]byte
}

// NewProber opens the sockets for probes of addr. workers is the number of
// readers of that address.
func NewProber(addr netip.AddrPort, workers int) (*Prober, error) {
	m := new(dns.Msg)
	m.SetQuestion(probeZone, dns.TypeTXT)
	query, err := m.Pack()
	if err != nil {
		return nil, err
	}
	p := &Prober{query: query}
	for range probePorts * workers {
		// A Gate allows queries from the address itself. The kernel might choose
		// another source address.
		from := &net.UDPAddr{IP: addr.Addr().AsSlice()}
		c, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open probe of %v: %w", addr, err), p.Close())
		}
		p.conns = append(p.conns, c)
	}
	return p, nil
}

// Sockets is the number of sockets. After that many replies all workers have
// replied.
func (p *Prober) Sockets() int { return len(p.conns) }

// Ask sends one query and waits for its reply. It also accepts the reply to one
// of the last few queries that got none.
func (p *Prober) Ask(wait time.Duration) error {
	const few = 4
	c := p.conns[p.next]
	if err := p.discardLate(c); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	id := binary.BigEndian.Uint16(p.query) + 1
	binary.BigEndian.PutUint16(p.query, id)
	if _, err := c.Write(p.query); err != nil {
		return err
	}
	for {
		n, err := c.Read(p.reply[:])
		if err != nil {
			return err
		}
		if n >= 2 && id-binary.BigEndian.Uint16(p.reply[:]) < few {
			p.next = (p.next + 1) % len(p.conns)
			return c.SetReadDeadline(time.Time{}) // its timer would wake the process
		}
	}
}

// discardLate drops late replies, because they do not show the present state.
func (p *Prober) discardLate(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		for err == nil {
			_, _, err = unix.Recvfrom(int(fd), p.reply[:], unix.MSG_DONTWAIT)
		}
	})
}

// Close closes the sockets. A concurrent Ask fails.
func (p *Prober) Close() error {
	var errs []error
	for _, c := range p.conns {
		if err := c.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
