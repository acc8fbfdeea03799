package outage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// patience is how long a client waits for a reply: stub resolvers give up after
// 5 s.
const patience = 5 * time.Second

// replyWait is patience, or more where the CPU is emulated.
func replyWait() time.Duration {
	if *emulated {
		return 6 * patience
	}
	return patience
}

// client sends queries from one socket at a steady rate and matches replies.
type client struct {
	conn  net.Conn
	name  func(seq int) string
	qtype uint16

	mu      sync.Mutex
	pending map[uint16]time.Time
	stopped bool // nothing more is sent
	tally
}

// tally counts the results of the queries of one or more clients.
type tally struct {
	sent, answered int
	rcodes         [16]int
	longest        time.Duration
	pause          time.Duration // the longest between two times of sending
}

func (a *tally) add(b tally) {
	a.sent += b.sent
	a.answered += b.answered
	for i, n := range b.rcodes {
		a.rcodes[i] += n
	}
	a.longest = max(a.longest, b.longest)
	a.pause = max(a.pause, b.pause)
}

// share is the percentage of queries that were answered.
func (a tally) share() float64 { return 100 * float64(a.answered) / float64(max(a.sent, 1)) }

// good is the percentage that was answered with NOERROR or NXDOMAIN.
func (a tally) good() float64 {
	return 100 * float64(a.rcodes[0]+a.rcodes[rcodeNXDomain]) / float64(max(a.sent, 1))
}

// newClient makes the i-th client of the namespace.
func newClient(t *testing.T, n *lab.Netns, i int, qtype uint16, name func(seq int) string) *client {
	t.Helper()
	return newClientOf(t, n, server, i, qtype, name)
}

// newClientOf is newClient for the server on address.
func newClientOf(t *testing.T, n *lab.Netns, address string, i int, qtype uint16, name func(seq int) string) *client {
	t.Helper()
	c := &client{name: name, qtype: qtype, pending: make(map[uint16]time.Time)}
	err := n.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}
		c.conn, err = d.Dial("udp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.conn.(*net.UDPConn).SetReadBuffer(4 << 20)
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

// run sends rate queries a second until stop is closed, and returns when the
// last reply has come or is too late. After a pause of this process it sends at most
// twice the rate: a burst of all clients would be another drill.
func (c *client) run(rate int, stop <-chan struct{}) {
	const beat = 5 * time.Millisecond
	done := make(chan struct{})
	go func() { defer close(done); c.receive() }()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	start, last := time.Now(), time.Now()
	most := max(2*rate*int(beat/time.Millisecond)/1000, 1)
	for seq, running := 0, true; running; {
		select {
		case <-stop:
			running = false
		case <-tick.C:
			due := min(int(time.Since(start).Seconds()*float64(rate)), seq+most)
			c.pause, last = max(c.pause, time.Since(last)), time.Now()
			for ; seq < due; seq++ {
				c.send(seq)
			}
		}
	}
	c.mu.Lock()
	c.stopped = true
	wait := replyWait()
	if len(c.pending) == 0 {
		wait = 0
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(wait))
	c.mu.Unlock()
	<-done
}

func (c *client) send(seq int) {
	id := uint16(seq)
	c.mu.Lock()
	c.pending[id] = time.Now()
	c.sent++
	c.mu.Unlock()
	_, _ = c.conn.Write(question(id, c.name(seq), c.qtype))
}

// receive reads replies until the deadline that run sets.
func (c *client) receive() {
	buf := make([]byte, 4096)
	for {
		n, err := c.conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < headerLen { // ECONNREFUSED: no process listens at the moment
			continue
		}
		c.note(buf[:n])
	}
}

func (c *client) note(reply []byte) {
	id := binary.BigEndian.Uint16(reply)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.pending[id]
	if !ok {
		return
	}
	delete(c.pending, id)
	c.answered++
	c.rcodes[reply[3]&15]++
	c.longest = max(c.longest, time.Since(at))
	if c.stopped && len(c.pending) == 0 {
		_ = c.conn.SetReadDeadline(time.Now())
	}
}

// load is a number of clients that query names that no client has queried before.
type load struct {
	clients, rate int // rate is of all together, per second
}

func (l load) String() string { return fmt.Sprintf("%d × %d/s", l.clients, l.rate) }

// run runs the load and hits beside it, for d, and returns both tallies.
func (l load) run(t *testing.T, n *lab.Netns, d time.Duration, hits int) (missed, hit tally) {
	t.Helper()
	stop := make(chan struct{})
	var all []*client
	var work sync.WaitGroup
	round := drillSeq.Add(1)
	for i := range l.clients {
		c := newClient(t, n, i+1, typeA, func(seq int) string { return missName(round, i, seq) })
		all = append(all, c)
		work.Go(func() { c.run(l.rate/l.clients, stop) })
	}
	h := newClient(t, n, 0, typeA, hitName)
	work.Go(func() { h.run(hits, stop) })
	time.AfterFunc(d, func() { close(stop) })
	work.Wait()
	for _, c := range all {
		missed.add(c.tally)
	}
	return missed, h.tally
}

var drillSeq atomic.Int64

// missName is a name that only this client queries, and only once.
func missName(round int64, client, seq int) string {
	return fmt.Sprintf("m%d-%d-%d.example", round, client, seq)
}

// hitName is one of a hundred names that are cached before the drill.
func hitName(seq int) string { return fmt.Sprintf("h%d.example", seq%100) }
