package bpf

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// A frozen process holds sockets on the port. After TakePort all packets and
// connections reach ours; when ours are closed, they reach the others again.
func TestTakePort(t *testing.T) {
	lab.NeedBPF(t)
	n := lab.NewNetns(t, "node", "10.0.0.1/32")
	frozen := listenShared(t, n, 2)
	ours := listenShared(t, n, 2)
	const all = 2 * sharedQueries
	if got := querySharedPort(t, n, frozen, ours); got == 0 || got == all {
		t.Fatalf("%d of %d reach us: this test proves nothing", got, all)
	}
	check(t, TakePort(ours.rawUDP(t)))
	check(t, TakePort(ours.rawTCP(t)))
	if got := querySharedPort(t, n, frozen, ours); got != all {
		t.Errorf("%d of %d reach us", got, all)
	}
	ours.close()
	if got := querySharedPort(t, n, frozen, ours); got != 0 {
		t.Errorf("%d of %d reach closed sockets", got, all)
	}
}

const (
	sharedAddr    = "10.0.0.1:20053"
	sharedQueries = 32 // over UDP, and as many over TCP
)

// sharedPort is sockets on sharedAddr. It counts what reaches them.
type sharedPort struct {
	udp     []*net.UDPConn
	tcp     *net.TCPListener
	arrived atomic.Int64
}

// querySharedPort sends queries from different ports, waits until all have arrived,
// and returns how many reached ours.
func querySharedPort(t *testing.T, n *lab.Netns, others, ours *sharedPort) int {
	t.Helper()
	others.arrived.Store(0)
	ours.arrived.Store(0)
	for range sharedQueries {
		_, err := n.Dial(t, "udp4", sharedAddr).Write([]byte("q"))
		check(t, err)
		n.Dial(t, "tcp4", sharedAddr)
	}
	for late := time.Now().Add(lab.QueryTimeout); others.arrived.Load()+ours.arrived.Load() < 2*sharedQueries; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d and %d arrived", others.arrived.Load(), ours.arrived.Load())
		}
	}
	return int(ours.arrived.Load())
}

func listenShared(t *testing.T, n *lab.Netns, workers int) *sharedPort {
	t.Helper()
	s := new(sharedPort)
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		const reusePort = 15 // SO_REUSEPORT
		return c.Control(func(fd uintptr) {
			check(t, syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1))
		})
	}}
	lc.SetMultipathTCP(false)
	n.Inside(t, func() error {
		for range workers {
			c, err := lc.ListenPacket(context.Background(), "udp4", sharedAddr)
			if err != nil {
				return err
			}
			s.udp = append(s.udp, c.(*net.UDPConn))
		}
		l, err := lc.Listen(context.Background(), "tcp4", sharedAddr)
		if err == nil {
			s.tcp = l.(*net.TCPListener)
		}
		return err
	})
	t.Cleanup(s.close)
	for _, c := range s.udp {
		go func() {
			for buf := make([]byte, 8); ; s.arrived.Add(1) {
				if _, _, err := c.ReadFrom(buf); err != nil {
					return
				}
			}
		}()
	}
	go func() {
		for ; ; s.arrived.Add(1) {
			c, err := s.tcp.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	return s
}

func (s *sharedPort) close() {
	for _, c := range s.udp {
		_ = c.Close()
	}
	_ = s.tcp.Close()
}

func (s *sharedPort) rawUDP(t *testing.T) (all []syscall.RawConn) {
	for _, c := range s.udp {
		raw, err := c.SyscallConn()
		check(t, err)
		all = append(all, raw)
	}
	return all
}

func (s *sharedPort) rawTCP(t *testing.T) []syscall.RawConn {
	raw, err := s.tcp.SyscallConn()
	check(t, err)
	return []syscall.RawConn{raw}
}
