package outage

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// behaviour is how the upstream handles a query.
type behaviour int32

const (
	answers   behaviour = iota
	dead                // no reply at all
	slow                // every reply after 500 ms
	lossy               // half of the queries get no reply
	dropsAAAA           // NXDOMAIN for A, no reply to AAAA
)

// fakeUpstream answers every A query with one address, over UDP. It reaches rates
// that a server library does not reach on half a CPU.
type fakeUpstream struct {
	conn      net.PacketConn
	behaviour atomic.Int32
	queries   atomic.Int64
	delayed   chan delayedReply
	work      sync.WaitGroup
}

type delayedReply struct {
	due   time.Time
	to    net.Addr
	reply []byte
}

func startUpstream(t *testing.T, n *lab.Netns, address string) *fakeUpstream {
	u := &fakeUpstream{conn: n.ListenPacket(t, "udp", address), delayed: make(chan delayedReply, 1<<17)}
	_ = u.conn.(*net.UDPConn).SetReadBuffer(8 << 20)
	u.work.Go(u.serve)
	u.work.Go(u.sendDelayed)
	t.Cleanup(func() {
		_ = u.conn.Close()
		u.work.Wait()
	})
	return u
}

func (u *fakeUpstream) set(b behaviour) { u.behaviour.Store(int32(b)) }

func (u *fakeUpstream) serve() {
	defer close(u.delayed)
	buf := make([]byte, 4096)
	conn := u.conn.(*net.UDPConn)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		u.queries.Add(1)
		u.answer(conn, buf[:n], from)
	}
}

func (u *fakeUpstream) answer(conn *net.UDPConn, query []byte, from netip.AddrPort) {
	qtype, end := questionOf(query)
	if end == 0 {
		return
	}
	switch behaviour(u.behaviour.Load()) {
	case dead:
		return
	case lossy:
		if rand.IntN(2) == 0 {
			return
		}
	case slow:
		u.delayed <- delayedReply{time.Now().Add(500 * time.Millisecond), net.UDPAddrFromAddrPort(from), reply(query, end, qtype, 0)}
		return
	case dropsAAAA:
		if qtype == typeAAAA {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(reply(query, end, qtype, rcodeNXDomain), from)
		return
	}
	_, _ = conn.WriteToUDPAddrPort(reply(query, end, qtype, 0), from)
}

func (u *fakeUpstream) sendDelayed() {
	for r := range u.delayed {
		time.Sleep(time.Until(r.due))
		_, _ = u.conn.WriteTo(r.reply, r.to)
	}
}
