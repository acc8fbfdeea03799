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

// probePorts is how many sockets a Prober asks from for each worker: the kernel
// spreads them over the workers' sockets by a hash of the addresses, and with so
// many one that meets none is rare.
const probePorts = 4

// probeZone exists only where HeartbeatZone is served.
const probeZone = "heartbeat.nodens.invalid."

// HeartbeatZone is a zone for a Prober to ask. Its answers are never cached, so
// that each question goes all the way that a miss goes, and never counted, so that
// they are not taken for clients'.
func HeartbeatZone() *Zone {
	return &Zone{Name: probeZone, Sources: []NamedSource{{Name: "heartbeat", Source: heartbeat{}}}, uncounted: true}
}

// heartbeat is the source of HeartbeatZone.
type heartbeat struct{}

func (heartbeat) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	return new(dns.Msg).SetReply(m), nil
}

// Prober asks an address that serves HeartbeatZone over and over, cheaply: from
// open sockets, one after the other, so that it meets all workers. A socket whose
// question was not answered is asked from again until it is: one worker that hangs
// fails all from then on. Not safe for concurrent use.
type Prober struct {
	conns []*net.UDPConn
	next  int
	query []byte
	reply [recvBufLen]byte
}

// NewProber opens sockets for asking addr, which has so many workers.
func NewProber(addr netip.AddrPort, workers int) (*Prober, error) {
	m := new(dns.Msg)
	m.SetQuestion(probeZone, dns.TypeTXT)
	query, err := m.Pack()
	if err != nil {
		return nil, err
	}
	p := &Prober{query: query}
	for range probePorts * workers {
		// A gate lets in what comes from the address itself, which is not always
		// the one that the kernel would choose.
		from := &net.UDPAddr{IP: addr.Addr().AsSlice()}
		c, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open probe of %v: %w", addr, err), p.Close())
		}
		p.conns = append(p.conns, c)
	}
	return p, nil
}

// Sockets is how many it asks from: after so many answers all workers have answered.
func (p *Prober) Sockets() int { return len(p.conns) }

// Ask asks one question and waits for a reply, at most so long. A reply to one of
// the last few questions that were asked in vain is as good.
func (p *Prober) Ask(wait time.Duration) error {
	const few = 4
	c := p.conns[p.next]
	if err := p.forget(c); err != nil {
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
			return nil
		}
	}
}

// forget drops what came too late: it says nothing of how it is now.
func (p *Prober) forget(c *net.UDPConn) error {
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

// Close closes the sockets; an Ask under way fails.
func (p *Prober) Close() error {
	var errs []error
	for _, c := range p.conns {
		if err := c.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
