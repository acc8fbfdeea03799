package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tcpListener accepts connections and owns them.
type tcpListener struct {
	srv *Server
	lis *listener
	ln  *net.TCPListener

	mu       sync.Mutex
	conns    map[*tcpConn]struct{}
	clients  map[netip.Addr]int // connections of each
	finished bool               // no new connections
	wg       sync.WaitGroup
}

// tcpConn is one client's connection. Queries are read by one goroutine;
// replies are written as they come, in any order (RFC 7766 §6.2.1.1).
type tcpConn struct {
	t      *tcpListener
	c      *net.TCPConn
	ctx    context.Context // done when the connection is closed
	cancel context.CancelFunc
	client netip.AddrPort
	slots  chan struct{} // a token for each query under resolution
	jobs   sync.WaitGroup
	limits TCPTimeouts
	taken  int // queries, by the goroutine that reads

	mu sync.Mutex // guards w
	w  *bufio.Writer
}

func (s *Server) listenTCP(ctx context.Context, lis *listener) (*tcpListener, error) {
	lc := net.ListenConfig{Control: SharePort(func(fd int) error {
		if lis.gate == nil {
			return nil
		}
		return wantPktinfo(fd, lis.addr.Addr()) // connections inherit it
	})}
	// A multipath socket cannot enter a sockmap, which redirection needs.
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, lis.network("tcp"), lis.addr.String())
	if err != nil {
		return nil, err
	}
	return &tcpListener{srv: s, lis: lis, ln: ln.(*net.TCPListener), conns: make(map[*tcpConn]struct{}), clients: make(map[netip.Addr]int)}, nil
}

// serve accepts until the listener is closed or told to stop.
func (t *tcpListener) serve() error {
	const longestPause = time.Second
	pause := 5 * time.Millisecond
	for {
		c, err := t.ln.AcceptTCP()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			t.take(c)
		case t.lis.closing.Load() || errors.Is(err, net.ErrClosed):
			return nil
		default:
			// Out of file descriptors, mostly. The backlog keeps the client
			// while connections end and free some.
			t.srv.log.Warn("accept", "listener", t.lis, "error", err)
			select {
			case <-time.After(pause):
			case <-t.srv.ctx.Done():
				return nil
			}
			pause = min(2*pause, longestPause)
		}
	}
}

// take starts serving c, or closes it when there are too many connections, of
// all clients or of this one.
func (t *tcpListener) take(c *net.TCPConn) {
	client, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	if g := t.lis.gate; g != nil && g.refuses(tcpArrival(c), client.Addr().Unmap(), t.lis.addr.Addr()) {
		_ = c.Close()
		return
	}
	ctx, cancel := context.WithCancel(t.srv.ctx)
	conn := &tcpConn{
		t: t, c: c, ctx: ctx, cancel: cancel,
		client: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()),
		slots:  make(chan struct{}, t.srv.tcp.Pipeline),
		limits: t.lis.table.Load().tcp,
		w:      bufio.NewWriter(c),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished || len(t.conns) >= t.srv.tcp.Connections || t.clients[conn.client.Addr()] >= t.srv.tcp.PerClient {
		t.srv.metrics.tcpRejected.Add(1)
		cancel()
		_ = c.Close()
		return
	}
	t.conns[conn] = struct{}{}
	t.clients[conn.client.Addr()]++
	t.wg.Go(conn.serve)
}

func (t *tcpListener) drop(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	if t.clients[c.client.Addr()]--; t.clients[c.client.Addr()] == 0 {
		delete(t.clients, c.client.Addr())
	}
}

// stopAccepting closes the listening socket after taking what the kernel has
// already accepted on our behalf: as long as it is open it gets its part of the
// connections to the address, which another process may share. serve must have
// ended: its hold on the socket would put the closing off, and the kernel resets
// what comes in between.
func (t *tcpListener) stopAccepting() error {
	raw, err := t.ln.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Control(func(fd uintptr) { t.takeBacklog(int(fd)) })
	return errors.Join(err, ignoreClosed(t.ln.Close()))
}

// takeBacklog accepts until the backlog is empty.
func (t *tcpListener) takeBacklog(fd int) {
	for {
		nfd, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		f := os.NewFile(uintptr(nfd), "tcp")
		c, err := net.FileConn(f)
		_ = f.Close() // FileConn works on a duplicate
		if err == nil {
			t.take(c.(*net.TCPConn))
		}
	}
}

// lastQueries is how long a connection that is being closed waits for each
// further query: those that were sent before the client could know.
const lastQueries = 200 * time.Millisecond

// finish lets every connection answer what has been sent on it, then closes it.
func (t *tcpListener) finish() {
	t.each(func(c *tcpConn) { _ = c.c.SetReadDeadline(time.Now().Add(lastQueries)) })
	t.wg.Wait()
}

// abort closes all connections at once.
func (t *tcpListener) abort() {
	t.each(func(c *tcpConn) { c.cancel(); _ = c.c.Close() })
}

func (t *tcpListener) each(f func(*tcpConn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finished = true
	for c := range t.conns {
		f(c)
	}
}

// serve reads queries until the client is silent for too long, closes its
// side, or breaks the framing. What is under resolution then is still
// answered: a client may half-close.
func (c *tcpConn) serve() {
	defer c.t.drop(c)
	defer c.cancel()
	defer c.c.Close()
	defer c.t.srv.survive("TCP connection")
	r := bufio.NewReader(c.c)
	var (
		q   = Query{memory: new(lookupMemory)}
		buf [recvBufLen]byte
		out []byte
	)
	for c.limits.Queries <= 0 || c.taken < c.limits.Queries {
		msg, whole, ok := c.read(r, buf[:])
		if !ok {
			break
		}
		c.taken++
		if out, ok = c.answer(&q, msg, whole, out, frameBuffered(r)); !ok {
			break
		}
	}
	_ = c.flush()
	c.jobs.Wait()
	_ = c.c.CloseWrite()
}

// read reads one frame into buf (RFC 1035 §4.2.2); of one that does not fit,
// the beginning. One deadline covers the whole frame, so that a client cannot
// hold a connection by single octets. It returns false at the end.
func (c *tcpConn) read(r *bufio.Reader, buf []byte) (msg []byte, whole, ok bool) {
	if c.t.awaitQuery(c) != nil {
		return nil, false, false
	}
	var prefix [2]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, false, false
	}
	n := int(binary.BigEndian.Uint16(prefix[:]))
	msg = buf[:min(n, len(buf))]
	if _, err := io.ReadFull(r, msg); err != nil {
		return nil, false, false
	}
	rest := n - len(msg)
	_, err := r.Discard(rest)
	return msg, rest == 0, err == nil
}

// frameBuffered reports whether the next frame is here as a whole, so that the
// reply before it may wait for its own.
func frameBuffered(r *bufio.Reader) bool {
	if r.Buffered() < 2 {
		return false
	}
	prefix, err := r.Peek(2)
	return err == nil && r.Buffered() >= 2+int(binary.BigEndian.Uint16(prefix))
}

// awaitQuery sets the deadline for the next query.
func (t *tcpListener) awaitQuery(c *tcpConn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := c.limits.Idle
	if c.taken == 0 {
		wait = c.limits.Read
	}
	if t.finished {
		wait = lastQueries
	}
	return c.c.SetReadDeadline(time.Now().Add(wait))
}

// answer replies to one query at once or starts its resolution. more says
// that the next query is at hand already, so that replies may share a write;
// whole, that msg is all of the query. It returns false when the connection is
// of no more use.
func (c *tcpConn) answer(q *Query, msg []byte, whole bool, out []byte, more bool) ([]byte, bool) {
	s := c.t.srv
	q.tcp, q.start, q.client = true, s.clock(), c.client
	v := q.parse(msg)
	if v == discard {
		s.metrics.discarded.Add(1)
		return out, false
	}
	if !whole {
		v = formErr
	}
	out, ok := s.tryHit(out[:0], c.t.lis, s.readers, q, v)
	if ok {
		return out, c.write(out, !more) == nil
	}
	if more && c.flush() != nil {
		return out, false
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return out, false
	}
	c.jobs.Add(1)
	j := s.newJob(q)
	j.conn = c
	s.start(c.t.lis, j)
	return out, true
}

// reply sends the reply of a miss.
func (c *tcpConn) reply(msg []byte) error { return c.write(msg, true) }

// done ends one miss of the connection.
func (c *tcpConn) done() {
	<-c.slots
	c.jobs.Done()
}

// write writes one frame. A client that does not read loses its connection.
func (c *tcpConn) write(msg []byte, flush bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.c.SetWriteDeadline(time.Now().Add(c.limits.Write))
	if err == nil {
		_, err = c.w.Write(binary.BigEndian.AppendUint16(c.w.AvailableBuffer(), uint16(len(msg))))
	}
	if err == nil {
		_, err = c.w.Write(msg)
	}
	if err == nil && flush {
		err = c.w.Flush()
	}
	if err != nil {
		c.cancel()
		_ = c.c.Close()
	}
	return err
}

func (c *tcpConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.Flush()
}
