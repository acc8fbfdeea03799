package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a Server.
type Config struct {
	Logger  *slog.Logger
	Metrics *Metrics
	Now     func() time.Time // a clock with monotonic readings

	// Identity is the answer to the TXT query id.server in class CH (RFC 4892),
	// at most 255 bytes. If it is empty, the query is refused.
	Identity string

	// Workers is the number of UDP sockets on each address. Each has a goroutine
	// that reads it. 0: one for each processor.
	Workers int
	// Queue bounds the receive queue of each UDP socket, in bytes as the kernel counts
	// them: several hundred for a query. 0: 8 MiB.
	Queue int
	// Timeout bounds the resolution of one miss. It must be less than the 5 s
	// after which stub resolvers give up.
	Timeout time.Duration
	// MaxMisses bounds the misses being resolved. Further ones get SERVFAIL.
	MaxMisses int
	// MaxMissesPerClient bounds those of one client address in one zone in the
	// same way. 0: an eighth of MaxMisses.
	MaxMissesPerClient int

	// Outside reports whether a Guarded Binding must refuse a client. It is
	// called for every query there. nil: all clients are served.
	Outside func(netip.Addr) bool

	TCP TCPLimits
}

// TCPLimits bounds the resources of TCP clients (RFC 7766 §6, RFC 9210 §4). A
// field that is 0 has its default.
type TCPLimits struct {
	Connections int           // of one listener; a further one replaces an idle one
	PerClient   int           // connections of one client address
	Pipeline    int           // queries of one connection being resolved; then reading pauses
	Idle        time.Duration // until the next query has arrived completely
	Write       time.Duration // for the client to accept a reply
	Unread      int64         // bytes of replies that wait until clients accept them
}

// TCPTimeouts override TCPLimits for one address. A zero value leaves the limit.
type TCPTimeouts struct {
	Read    time.Duration // for the first query of a connection; 0: Idle
	Idle    time.Duration
	Write   time.Duration
	Queries int // of one connection; 0 or less: no limit
}

// over returns t with its zero values taken from l.
func (t TCPTimeouts) over(l TCPLimits) TCPTimeouts {
	t.Idle, t.Write = cmp.Or(t.Idle, l.Idle), cmp.Or(t.Write, l.Write)
	t.Read = cmp.Or(t.Read, t.Idle)
	return t
}

// Defaults for the zero values of Config.
const (
	defaultTimeout   = 4500 * time.Millisecond
	defaultMaxMisses = 16384
	defaultQueue     = 8 << 20
)

// lookupShare bounds the goroutines that wait for an answer: one per lookupShare misses.
// The stack of one costs as much as two misses.
const lookupShare = 16

var defaultTCP = TCPLimits{Connections: 1024, PerClient: 512, Pipeline: 128, Idle: 10 * time.Second, Write: 5 * time.Second, Unread: 64 << 20}

// withDefaults returns c with defaults in place of zero values.
func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, runtime.GOMAXPROCS(0))
	c.Queue = cmp.Or(c.Queue, defaultQueue)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.MaxMisses = cmp.Or(c.MaxMisses, defaultMaxMisses)
	c.MaxMissesPerClient = cmp.Or(c.MaxMissesPerClient, max(c.MaxMisses/8, 1))
	c.TCP = TCPLimits{
		Connections: cmp.Or(c.TCP.Connections, defaultTCP.Connections),
		PerClient:   cmp.Or(c.TCP.PerClient, defaultTCP.PerClient),
		Pipeline:    cmp.Or(c.TCP.Pipeline, defaultTCP.Pipeline),
		Idle:        cmp.Or(c.TCP.Idle, defaultTCP.Idle),
		Write:       cmp.Or(c.TCP.Write, defaultTCP.Write),
		Unread:      cmp.Or(c.TCP.Unread, defaultTCP.Unread),
	}
	return c
}

// Server answers DNS queries on a changing set of addresses.
type Server struct {
	resolver
	tcp    TCPLimits
	cancel context.CancelFunc // ends resolver.ctx
	failed chan error         // the error of the first reader that failed
	serial atomic.Uint32

	queue        int                            // Config.Queue
	tcpEvents    atomic.Uint64                  // of all connections; orders them
	tcpUnread    atomic.Int64                   // bytes, see TCPLimits.Unread
	tcpListeners atomic.Pointer[[]*tcpListener] // those in listeners

	mu           sync.Mutex // serialises Apply and Shutdown
	listeners    map[netip.AddrPort]*listener
	kernelWarned bool
	retiring     sync.WaitGroup
}

// resolver answers the queries of all listeners.
type resolver struct {
	log        *slog.Logger
	metrics    *Metrics
	clock      func() time.Time
	readers    int // UDP sockets of each address
	maxLookups int64
	timeout    time.Duration

	identity string
	outside  func(netip.Addr) bool // nil: no client is outside

	jobs     sync.Pool // of *job
	buffers  sync.Pool // of *replyBuffer
	workers  workerPool
	misses   *misses
	lookups  atomic.Int64 // of lookupName, in progress
	inflight inflight
	ctx      context.Context // ends exchanges after Shutdown's deadline
}

// Queries is Metrics.Queries of the server.
func (s *Server) Queries() uint64 { return s.metrics.Queries() }

// New makes a Server without addresses.
func New(c Config) *Server {
	c = c.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		resolver: resolver{
			log: c.Logger, metrics: c.Metrics, clock: c.Now, readers: c.Workers, timeout: c.Timeout,
			identity: c.Identity, outside: c.Outside,
			misses: newMisses(c.MaxMisses, c.MaxMissesPerClient), maxLookups: max(int64(c.MaxMisses/lookupShare), 1),
			ctx: ctx,
		},
		tcp:       c.TCP,
		queue:     c.Queue,
		cancel:    cancel,
		failed:    make(chan error, 1),
		listeners: make(map[netip.AddrPort]*listener),
	}
	s.jobs.New = func() any { return &job{srv: &s.resolver} }
	s.buffers.New = func() any { return new(replyBuffer) }
	s.tcpListeners.Store(new([]*tcpListener))
	return s
}

// Failed delivers the error of the first listener that fails.
func (s *Server) Failed() <-chan error { return s.failed }

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Apply makes bindings the configuration. It opens new addresses before it changes
// anything, so after an error the Server is unchanged. Addresses that stay keep
// their sockets. Removed addresses are drained in the background, for at most the
// timeout of a miss.
func (s *Server) Apply(ctx context.Context, bindings []Binding) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tables := make(map[netip.AddrPort]*zoneTable, len(bindings))
	for _, b := range bindings {
		for _, z := range b.Zones {
			if z.serial == 0 {
				z.serial = s.serial.Add(1)
			}
		}
		t, err := newZoneTable(b, s.metrics)
		if err != nil {
			return err
		}
		t.tcp = b.TCP.over(s.tcp)
		tables[b.Addr] = t
	}
	s.warnKernelZones()
	opened, err := s.openMissing(ctx, bindings)
	if err != nil {
		return err
	}
	if fast, addrs := s.fastpathOf(bindings); fast != nil {
		generation := fast.Listen(addrs) // before the new tables serve
		for _, t := range tables {
			t.generation = generation
		}
	}
	for _, l := range opened {
		l.table.Store(tables[l.addr])
		if before, ok := s.listeners[l.addr]; ok {
			s.drain(before)
		}
		s.listeners[l.addr] = l
		l.serve(s.fail)
	}
	for addr, t := range tables {
		s.listeners[addr].table.Store(t)
	}
	s.retire(tables)
	s.publishTCP()
	return nil
}

// publishTCP sets tcpListeners.
func (s *Server) publishTCP() {
	var all []*tcpListener
	for _, l := range s.listeners {
		all = append(all, l.tcp)
	}
	s.tcpListeners.Store(&all)
}

// openMissing opens a listener for each address that has none, or has one that does
// not know where queries arrive, which a Fastpath needs. On error it opens none.
func (s *Server) openMissing(ctx context.Context, bindings []Binding) ([]*listener, error) {
	var opened []*listener
	for _, b := range bindings {
		if l, ok := s.listeners[b.Addr]; ok && (l.fast == nil) == (b.Fastpath == nil) {
			continue
		}
		l, err := s.open(ctx, b)
		if err != nil {
			for _, o := range opened {
				err = errors.Join(err, o.closeSockets())
			}
			return nil, err
		}
		opened = append(opened, l)
	}
	return opened, nil
}

// retire drains the listeners whose addresses are not in keep.
func (s *Server) retire(keep map[netip.AddrPort]*zoneTable) {
	for addr, l := range s.listeners {
		if _, ok := keep[addr]; !ok {
			delete(s.listeners, addr)
			s.drain(l)
		}
	}
}

// drain stops a listener in the background.
func (s *Server) drain(l *listener) {
	s.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
		defer cancel()
		if err := l.stop(ctx); err != nil {
			s.log.Warn("listener closed while queries were being resolved", "listener", l, "error", err)
		}
	})
}

// Addrs returns the addresses being served.
func (s *Server) Addrs() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]netip.AddrPort, 0, len(s.listeners))
	for a := range s.listeners {
		addrs = append(addrs, a)
	}
	return addrs
}

// Shutdown drains and closes all listeners. When ctx is done, it answers the
// queries that are still being resolved with SERVFAIL and closes connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stopping := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { stopping <- l.stop(ctx) }()
	}
	stopAfter := context.AfterFunc(ctx, s.abort)
	defer stopAfter()
	var errs []error
	for range s.listeners {
		errs = append(errs, <-stopping)
	}
	clear(s.listeners)
	s.retiring.Wait()
	s.abort()
	s.workers.close()
	return errors.Join(errs...)
}

// abort answers all queries being resolved with SERVFAIL, also later ones.
func (s *Server) abort() {
	s.cancel()
	for _, w := range s.inflight.close() {
		w.deliver(answer{err: errShutdown})
	}
}
