package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// tcpListener accepts and owns connections.
type tcpListener struct {
	srv *Server
	lis *listener
	ln  *net.TCPListener

	mu       sync.Mutex
	conns    map[*tcpConn]struct{}
	clients  map[netip.Addr]int // number of connections by client
	finished bool               // accept no new connections
	wg       sync.WaitGroup
}

// tcpConn is one connection. One goroutine reads the queries. Replies are written
// in any order, as soon as they are made (RFC 7766 §6.2.1.1).
type tcpConn struct {
	t       *tcpListener
	c       *net.TCPConn
	ctx     context.Context // done when the connection is closed
	cancel  context.CancelFunc
	client  netip.AddrPort
	slots   chan struct{} // one token for each query being resolved
	reading atomic.Bool   // a part of a query has arrived that is not answered nor being resolved
	jobs    sync.WaitGroup
	limits  TCPTimeouts
	since   atomic.Uint64 // its last event, in Server.tcpEvents
	count   int           // of queries, used by the reading goroutine only
	frame   []byte        // memory of write, used by the reading goroutine only

	mu sync.Mutex // guards w
	w  *bufio.Writer

	misses tcpMisses
}

// tcpMisses are the queries of a connection that are being resolved, and the
// replies to them that are not written yet.
type tcpMisses struct {
	mu      sync.Mutex
	active  map[*job]struct{}
	frames  []byte // to be written
	unread  int64  // bytes of frames, and of those being written
	ended   int    // queries that ended and still have their token
	writing bool   // a worker writes
}

const frameLen = 2 // bytes of the length before a message

// Sizes in bytes of the kernel's buffers of a connection. The kernel doubles them.
// Without them, a client that does not read may occupy several megabytes.
const (
	tcpSendBuffer    = 16 << 10
	tcpReceiveBuffer = 4 << 10
)

func (s *Server) listenTCP(ctx context.Context, lis *listener) (*tcpListener, error) {
	lc := net.ListenConfig{Control: SharePort(func(fd int) error { // connections inherit it
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, tcpSendBuffer)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, tcpReceiveBuffer)
		if lis.gate == nil {
			return nil
		}
		return wantPktinfo(fd, lis.addr.Addr())
	})}
	// Redirection needs a sockmap, which does not accept multipath sockets.
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, lis.network("tcp"), lis.addr.String())
	if err != nil {
		return nil, err
	}
	return &tcpListener{srv: s, lis: lis, ln: ln.(*net.TCPListener), conns: make(map[*tcpConn]struct{}), clients: make(map[netip.Addr]int)}, nil
}

// serve accepts until the listener is closed or told to stop. It logs a failure
// unless accept failed within the last minute, too.
func (t *tcpListener) serve() {
	const shortestPause, longestPause = 5 * time.Millisecond, time.Second
	pause, failed := shortestPause, time.Time{}
	for {
		c, err := t.ln.AcceptTCP()
		if err == nil {
			pause = shortestPause
			t.accept(c)
			continue
		}
		if t.lis.closing.Load() || errors.Is(err, net.ErrClosed) {
			return
		}
		now := t.srv.clock()
		if failed.IsZero() || now.Sub(failed) > time.Minute {
			t.srv.log.Warn("accepting TCP connections failed", "listener", t.lis, "error", err)
		}
		failed = now
		if isScarce(err) && t.srv.makeRoomForFile() {
			continue
		}
		select { // The client waits in the backlog.
		case <-time.After(pause):
		case <-t.srv.ctx.Done():
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// accept starts serving c. If there are too many connections, in total or of this
// client, it closes an idle one, or c if none is idle.
func (t *tcpListener) accept(c *net.TCPConn) {
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
		misses: tcpMisses{active: make(map[*job]struct{})},
	}
	context.AfterFunc(ctx, conn.abandon)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished || !t.makeRoom(conn.client.Addr()) {
		t.srv.metrics.tcpRejected.Add(1)
		cancel()
		_ = c.Close()
		return
	}
	conn.touch(false)
	t.conns[conn] = struct{}{}
	t.clients[conn.client.Addr()]++
	t.wg.Go(conn.serve)
}

// remove removes a connection that has ended.
func (t *tcpListener) remove(c *tcpConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.conns[c]; ok {
		t.forget(c)
	}
}

// forget removes c, which is in t.conns. t.mu is held.
func (t *tcpListener) forget(c *tcpConn) {
	delete(t.conns, c)
	if t.clients[c.client.Addr()]--; t.clients[c.client.Addr()] == 0 {
		delete(t.clients, c.client.Addr())
	}
}

// stopAccepting accepts the connections in the backlog and closes the listening
// socket. While the socket is open, it gets a share of the new connections, even if
// another process listens on the address too. serve must have ended: it would delay
// the close, and the kernel resets connections that arrive meanwhile.
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
			t.accept(c.(*net.TCPConn))
		}
	}
}

// drainWait is how long a closing connection waits for each query that the client
// has already sent.
const drainWait = 200 * time.Millisecond

// finish closes every connection after its queries have been answered.
func (t *tcpListener) finish() {
	t.each(func(c *tcpConn) { _ = c.c.SetReadDeadline(time.Now().Add(drainWait)) })
	t.wg.Wait()
}

// abort closes all connections immediately.
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

// serve reads queries until the client is idle for too long, closes its side, or
// breaks the framing. It still answers the queries being resolved, because a
// client may half-close.
func (c *tcpConn) serve() {
	defer c.t.remove(c)
	defer c.cancel()
	defer c.c.Close()
	defer c.t.srv.recoverPanic("TCP connection")
	r := bufio.NewReader(c.c)
	var (
		q   = Query{memory: new(lookupMemory)}
		buf [recvBufLen]byte
		out []byte
	)
	for c.limits.Queries <= 0 || c.count < c.limits.Queries {
		msg, whole, ok := c.read(r, buf[:])
		if !ok {
			break
		}
		c.count++
		if out, ok = c.answer(&q, msg, whole, out, frameBuffered(r)); !ok {
			break
		}
	}
	_ = c.flush()
	c.jobs.Wait()
	_ = c.c.CloseWrite()
}

// read reads one frame into buf (RFC 1035 §4.2.2). If it does not fit, msg is its
// beginning and whole is false. One deadline covers the whole frame, so that a
// client cannot hold a connection by sending single bytes. ok is false at the
// end of the connection.
func (c *tcpConn) read(r *bufio.Reader, buf []byte) (msg []byte, whole, ok bool) {
	if c.t.setReadDeadline(c) != nil {
		return nil, false, false
	}
	if r.Buffered() == 0 {
		c.touch(false)
	}
	_, err := r.Peek(1)
	c.touch(true)
	var prefix [2]byte
	if err == nil {
		_, err = io.ReadFull(r, prefix[:])
	}
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			c.cancel() // the client has disconnected and waits for no reply
		}
		return nil, false, false
	}
	n := int(binary.BigEndian.Uint16(prefix[:]))
	msg = buf[:min(n, len(buf))]
	if _, err := io.ReadFull(r, msg); err != nil {
		return nil, false, false
	}
	rest := n - len(msg)
	_, err = r.Discard(rest)
	return msg, rest == 0, err == nil
}

// frameBuffered reports whether the next frame is completely buffered. Then the
// reply before it can be sent together with the next one.
func frameBuffered(r *bufio.Reader) bool {
	if r.Buffered() < 2 {
		return false
	}
	prefix, err := r.Peek(2)
	return err == nil && r.Buffered() >= 2+int(binary.BigEndian.Uint16(prefix))
}

// setReadDeadline sets the deadline for the next query.
func (t *tcpListener) setReadDeadline(c *tcpConn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := c.limits.Idle
	if c.count == 0 {
		wait = c.limits.Read
	}
	if t.finished {
		wait = drainWait
	}
	return c.c.SetReadDeadline(time.Now().Add(wait))
}

// answer replies to one query at once or starts its resolution. more means that
// the next query is buffered, so that replies can share a write. whole means
// that msg is the complete query. It returns false if the connection must be
// closed.
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
	if err := s.misses.acquire(q.zone, q.client.Addr(), forClient); err != nil {
		<-c.slots
		out = s.reject(out, s.readers, q, err)
		return out, c.write(out, true) == nil
	}
	c.jobs.Add(1)
	j := s.jobs.Get().(*job)
	q.copyTo(&j.q)
	j.conn = c
	c.misses.mu.Lock()
	c.misses.active[j] = struct{}{}
	c.misses.mu.Unlock()
	j.start(c.t.lis)
	return out, true
}

// unreadShare bounds the bytes of one connection to TCPLimits.Unread / unreadShare.
const unreadShare = 4

// reserve makes room for the reply to q until the client has accepted it. If too many
// bytes wait already, on this connection or on all, it replaces the reply with
// SERVFAIL, which is short.
func (c *tcpConn) reserve(q *Query, reply []byte) []byte {
	s, m := c.t.srv, &c.misses
	m.mu.Lock()
	defer m.mu.Unlock()
	n := int64(frameLen + len(reply))
	if m.unread+n > s.tcp.Unread/unreadShare || s.tcpUnread.Load()+n > s.tcp.Unread {
		s.metrics.tcpUnread.Add(1)
		reply = appendError(reply[:0], q, dns.RcodeServerFailure, failureNote(refusedUnread))
		n = int64(frameLen + len(reply))
	}
	m.unread += n
	s.tcpUnread.Add(n)
	return reply
}

// ReserveUnread takes bytes of TCPLimits.Unread for another use, or gives back -bytes.
func (s *Server) ReserveUnread(bytes int64) { s.tcpUnread.Add(bytes) }

// accepted undoes reserve for n bytes of frames.
func (c *tcpConn) accepted(n int) {
	c.misses.mu.Lock()
	c.misses.unread -= int64(n)
	c.misses.mu.Unlock()
	c.t.srv.tcpUnread.Add(-int64(n))
}

// finish ends j. A worker writes its reply, nil for none, because the client may not
// read.
func (c *tcpConn) finish(j *job, reply []byte) {
	m := &c.misses
	m.mu.Lock()
	delete(m.active, j)
	if reply != nil {
		m.frames = binary.BigEndian.AppendUint16(m.frames, uint16(len(reply)))
		m.frames = append(m.frames, reply...)
	}
	m.ended++
	start := !m.writing
	m.writing = true
	m.mu.Unlock()
	if start {
		c.t.srv.workers.do(c.writeReplies)
	}
}

// writeReplies writes replies until there are none.
func (c *tcpConn) writeReplies() {
	m := &c.misses
	for {
		m.mu.Lock()
		frames, ended := m.frames, m.ended
		m.frames, m.ended, m.writing = nil, 0, ended > 0
		m.mu.Unlock()
		if ended == 0 {
			return
		}
		c.since.Store(c.t.srv.tcpEvents.Add(1)) // before the client has the replies
		if len(frames) > 0 && c.writeFrames(frames, true) != nil {
			c.t.srv.metrics.sendErrors.Add(1)
		}
		c.accepted(len(frames))
		for range ended {
			<-c.slots
			c.jobs.Done()
		}
	}
}

// abandon drops the queries of a client that has disconnected.
func (c *tcpConn) abandon() {
	c.misses.mu.Lock()
	active := slices.Collect(maps.Keys(c.misses.active))
	c.misses.mu.Unlock()
	for _, j := range active {
		j.abandon()
	}
}

// write writes one reply.
func (c *tcpConn) write(msg []byte, flush bool) error {
	frame := binary.BigEndian.AppendUint16(c.frame[:0], uint16(len(msg)))
	c.frame = append(frame, msg...)
	return c.writeFrames(c.frame, flush)
}

// writeFrames writes framed replies. It closes the connection of a client that
// does not read.
func (c *tcpConn) writeFrames(frames []byte, flush bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.c.SetWriteDeadline(time.Now().Add(c.limits.Write))
	if err == nil {
		_, err = c.w.Write(frames)
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
