package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/nodens-dns/nodens/internal/server"
)

// endpoint is one HTTP path on one address.
type endpoint struct {
	addr    string // host:port
	path    string
	handler http.Handler
	// optional: if the address is not available, the daemon runs without it, and takes it
	// later. Processes do not share it, so that a client knows which one answers, unless
	// another endpoint has the port, too.
	optional bool
}

// adminServers serve /health, /ready and /metrics. An address that is also in the
// next configuration keeps its socket, unless another endpoint needs its port. Only one
// goroutine may call the methods.
type adminServers struct {
	log    *slog.Logger
	retry  time.Duration // for an optional address that is not available
	byAddr map[string]*adminServer
}

type adminServer struct {
	ln   net.Listener
	sole bool // no other socket may have the port
	late bool // optional: with few connections, and perhaps not open yet
	http *http.Server
	mux  atomic.Pointer[http.ServeMux]
	done chan struct{} // closed when serving has ended
}

func newAdminServers(log *slog.Logger) *adminServers {
	return &adminServers{log: log, retry: 2 * time.Second, byAddr: make(map[string]*adminServer)}
}

// prepare opens the new addresses. commit serves the endpoints there and no longer
// elsewhere; abort closes the new addresses again.
func (a *adminServers) prepare(ctx context.Context, endpoints []endpoint) (commit, abort func(), err error) {
	muxes := muxesOf(endpoints)
	opened := make(map[string]*adminServer)
	restore := a.closeOptional(ctx, endpoints)
	abort = func() {
		for _, s := range opened {
			_ = s.ln.Close()
		}
		restore()
	}
	for addr := range muxes {
		if a.byAddr[addr] != nil {
			continue
		}
		s, err := a.open(ctx, addr, endpoints)
		if err != nil {
			abort()
			return nil, nil, err
		}
		opened[addr] = s
	}
	return func() { a.commit(muxes, opened) }, abort, nil
}

// closeOptional closes each optional server whose address the next endpoints require, or
// whose port they must share. restore opens them again.
func (a *adminServers) closeOptional(ctx context.Context, next []endpoint) (restore func()) {
	closed := make(map[string]*adminServer)
	for addr, s := range a.byAddr {
		if s.late && !allOptional(next, addr) || s.sole && hasPortTwice(next, addr) {
			closed[addr] = s
			a.end(addr)
		}
	}
	return func() {
		for addr, s := range closed {
			a.serve(addr, a.openOptional(ctx, addr, s.sole), s.mux.Load())
		}
	}
}

// allOptional reports whether all endpoints at addr are optional.
func allOptional(endpoints []endpoint, addr string) bool {
	return !slices.ContainsFunc(endpoints, func(e endpoint) bool { return e.addr == addr && !e.optional })
}

// muxesOf returns one mux for each address. Several blocks may name the same
// endpoint.
func muxesOf(endpoints []endpoint) map[string]*http.ServeMux {
	muxes := make(map[string]*http.ServeMux)
	seen := make(map[[2]string]bool)
	for _, e := range endpoints {
		k := [2]string{e.addr, e.path}
		if seen[k] {
			continue
		}
		seen[k] = true
		if muxes[e.addr] == nil {
			muxes[e.addr] = http.NewServeMux()
		}
		muxes[e.addr].Handle(e.path, e.handler)
	}
	return muxes
}

// Bounds of a client of an admin server. The probes of the kubelet need an address
// that never waits, so only an optional one has maxOptionalConns.
const (
	maxOptionalConns = 2 * maxFollowers // connections; further ones wait
	maxAdminHeader   = 16 << 10         // bytes of a request without its body
	adminRead        = 5 * time.Second  // for a client to send its request
)

// open opens addr, an address of endpoints. If one of them requires addr, it sets
// SO_REUSEPORT: in a surge upgrade, the old and the new process share the port.
func (a *adminServers) open(ctx context.Context, addr string, endpoints []endpoint) (*adminServer, error) {
	if allOptional(endpoints, addr) {
		return a.openOptional(ctx, addr, !hasPortTwice(endpoints, addr)), nil
	}
	lc := net.ListenConfig{Control: server.SharePort(nil)}
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, explainListen(fmt.Errorf("listen on %s: %w", addr, err), addr)
	}
	return newAdminServer(ctx, ln), nil
}

// hasPortTwice reports whether an endpoint has the port of addr at another address, as in
// 0.0.0.0:9354 and 127.0.0.1:9354. Without SO_REUSEPORT, a process cannot open both.
func hasPortTwice(endpoints []endpoint, addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	return slices.ContainsFunc(endpoints, func(e endpoint) bool {
		_, p, _ := net.SplitHostPort(e.addr)
		return e.addr != addr && p == port
	})
}

// openOptional opens addr, without SO_REUSEPORT if sole is true. If addr is not available,
// it logs this, and the server opens addr later.
func (a *adminServers) openOptional(ctx context.Context, addr string, sole bool) *adminServer {
	lc, ctx := net.ListenConfig{}, context.WithoutCancel(ctx)
	if !sole {
		lc.Control = server.SharePort(nil)
	}
	l := &lateListener{retry: a.retry, opened: func() {}, closed: make(chan struct{})}
	l.listen = func() (net.Listener, error) { return lc.Listen(ctx, "tcp", addr) }
	if _, err := l.open(); err != nil {
		a.log.Warn("an address is not available: nodens serves DNS, and tries again at intervals", "address", addr, "interval", a.retry, "error", explainListen(err, addr))
		l.opened = func() { a.log.Info("an address is available now", "address", addr) }
	}
	s := newAdminServer(ctx, netutil.LimitListener(l, maxOptionalConns))
	s.sole, s.late = sole, true
	return s
}

// newAdminServer serves nothing yet.
func newAdminServer(ctx context.Context, ln net.Listener) *adminServer {
	s := &adminServer{ln: ln, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // of all requests
	s.http = &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 { // the server reads the body before it sends the reply
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(adminRead))
			}
			s.mux.Load().ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: adminRead,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxAdminHeader,
	}
	s.http.RegisterOnShutdown(cancel) // Close does so itself
	return s
}

// explainListen is explainPort for host:port.
func explainListen(err error, addr string) error {
	host, port, _ := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if perr != nil {
		return err
	}
	if ip, ierr := netip.ParseAddr(host); ierr == nil && !ip.IsUnspecified() {
		return explainPort(err, uint16(n), ip)
	}
	return explainPort(err, uint16(n))
}

func (a *adminServers) commit(muxes map[string]*http.ServeMux, opened map[string]*adminServer) {
	for addr, s := range opened {
		a.serve(addr, s, muxes[addr])
	}
	for addr, s := range a.byAddr {
		if mux, ok := muxes[addr]; ok {
			s.mux.Store(mux)
			continue
		}
		a.end(addr)
	}
}

// serve serves mux at addr.
func (a *adminServers) serve(addr string, s *adminServer, mux *http.ServeMux) {
	s.mux.Store(mux)
	a.byAddr[addr] = s
	go func() {
		defer close(s.done)
		if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("HTTP server failed", "address", addr, "error", err)
		}
	}()
}

// end closes the server at addr.
func (a *adminServers) end(addr string) {
	s := a.byAddr[addr]
	delete(a.byAddr, addr)
	_ = s.http.Close()
	<-s.done
}

// close ends all servers. Requests in flight may finish until ctx is done.
func (a *adminServers) close(ctx context.Context) error {
	var errs []error
	for _, s := range a.byAddr {
		if s.http.Shutdown(ctx) != nil {
			errs = append(errs, s.http.Close())
		}
		<-s.done
	}
	clear(a.byAddr)
	return errors.Join(errs...)
}

// probeState is what the probes /health and /ready report.
type probeState struct {
	ready    atomic.Bool
	stopping atomic.Bool
}

// serveHealth answers 200 while the process serves, as CoreDNS does.
func (*probeState) serveHealth(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "OK") }

// serveReady answers 200 from the end of the start until SIGTERM.
func (s *probeState) serveReady(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.stopping.Load():
		http.Error(w, "stopping", http.StatusServiceUnavailable)
	case !s.ready.Load():
		http.Error(w, "starting", http.StatusServiceUnavailable)
	default:
		fmt.Fprint(w, "OK")
	}
}
