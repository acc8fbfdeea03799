package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Binding is an address to serve and the zones served there. An unspecified
// address with zone "" is every address of the host, both families.
type Binding struct {
	Addr  netip.AddrPort
	Zones []*Zone
	// Gate, if not nil, blocks queries by interface. Addr must then not be
	// unspecified. The address keeps the Gate of the Apply that opened it.
	Gate *Gate
	TCP  TCPTimeouts
	// Fastpath, if not nil, gets the address's hits. Addr must then not be
	// unspecified. All bindings have the same one or none.
	Fastpath Fastpath

	// Guarded addresses refuse clients that are Config.Outside. They send the
	// reply REFUSED, because it is no larger than the query and helps clients
	// that are configured with the wrong server.
	Guarded bool
}

// listener serves one address over UDP and TCP.
type listener struct {
	addr    netip.AddrPort
	gate    *Gate    // nil: nothing is blocked
	fast    Fastpath // nil: off
	table   atomic.Pointer[zoneTable]
	unzoned *zoneStats // of queries without a zone and messages without a question
	closing atomic.Bool

	udp []*udpSocket
	tcp *tcpListener

	readers sync.WaitGroup // goroutines reading the sockets
	jobs    sync.WaitGroup // misses being resolved
}

func (l *listener) String() string { return "dns://" + l.addr.String() }

// network is the Go network name of "udp" or "tcp" for this address.
func (l *listener) network(proto string) string {
	if l.addr.Addr().Is4() {
		return proto + "4"
	}
	if l.addr.Addr().IsUnspecified() {
		return proto // dual-stack
	}
	return proto + "6"
}

// deadPeer is an address that never sends queries: the listener's own, with a
// port that no client uses.
func (l *listener) deadPeer() unix.Sockaddr {
	const port = 1
	a := l.addr.Addr()
	switch {
	case a.Is4() && a.IsUnspecified():
		return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	case a.Is4():
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	case a.IsUnspecified():
		// The socket accepts both families, and a host may lack IPv6.
		return &unix.SockaddrInet6{Port: port, Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1}).As16()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

// open opens all sockets of a listener. It does not read them yet.
func (s *Server) open(ctx context.Context, b Binding) (*listener, error) {
	addr := b.Addr
	l := &listener{addr: addr, gate: b.Gate, fast: b.Fastpath}
	l.unzoned = s.metrics.zone(l.String(), noZone)
	for i := range s.readers {
		u, err := s.listenUDP(ctx, l, i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %v: %w", addr, err), l.closeSockets())
		}
		l.udp = append(l.udp, u)
	}
	t, err := s.listenTCP(ctx, l)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %v: %w", addr, err), l.closeSockets())
	}
	l.tcp = t
	return l, nil
}

// serve starts the readers. They end when stop is called. If a UDP reader fails before,
// serve calls fail with its error.
func (l *listener) serve(fail func(error)) {
	for _, u := range l.udp {
		l.readers.Go(func() {
			if err := u.serve(); err != nil {
				fail(err)
			}
		})
	}
	l.readers.Go(l.tcp.serve)
}

// stop takes the listener out of service and loses no query: new datagrams go to
// other sockets on the address, queued ones are answered, and queries being
// resolved finish until ctx is done.
func (l *listener) stop(ctx context.Context) error {
	l.closing.Store(true)
	var errs []error
	for _, u := range l.udp {
		errs = append(errs, u.handOver(), u.conn.SetReadDeadline(time.Unix(1, 0)))
	}
	errs = append(errs, l.tcp.ln.SetDeadline(time.Unix(1, 0)))
	l.readers.Wait()
	errs = append(errs, l.tcp.stopAccepting())
	for _, u := range l.udp {
		errs = append(errs, u.conn.SetReadDeadline(time.Time{}))
		u.drain()
	}
	errs = append(errs, l.wait(ctx), l.closeSockets())
	l.jobs.Wait()
	return errors.Join(errs...)
}

// wait waits for the queries being resolved and the TCP connections, until ctx
// is done.
func (l *listener) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.tcp.finish()
		l.jobs.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		l.tcp.abort()
		<-done
		return fmt.Errorf("drain %v: %w", l, context.Cause(ctx))
	}
}

func (l *listener) closeSockets() error {
	var errs []error
	for _, u := range l.udp {
		errs = append(errs, ignoreClosed(u.conn.Close()))
	}
	if l.tcp != nil {
		errs = append(errs, ignoreClosed(l.tcp.ln.Close()))
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
