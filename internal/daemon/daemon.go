// Package daemon runs the DNS cache of a node. It builds the parts from the
// Corefile, starts and stops them, and reloads the Corefile when it changes.
package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// base is what all parts of a daemon share.
type base struct {
	opts        *Options
	log         *slog.Logger // writes to logLines
	logLines    *lineWriter
	level       *slog.LevelVar // of log
	registry    *prometheus.Registry
	setupErrors *prometheus.CounterVec // by errortype
}

// daemon is the process. Its parts outlive configurations.
type daemon struct {
	base
	lines    *lineWriter // of the query log
	memory   *memoryGuard
	host     *hostSetup
	redirect *redirect.Redirector
	server   *server.Server
	active   *activeConfig
	liveness *liveness
	handOver *handOver
	probes   *probeState
	reloader *reloader
	pidfile  pidFile
}

func newBase(o *Options) base {
	level := new(slog.LevelVar)
	level.Set(o.LogLevel)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo("coredns_build_info", o.Version), buildInfo("nodens_build_info", o.Version),
	)
	lines := newLog(o.Stderr, registry)
	return base{
		opts: o, level: level, logLines: lines, log: slog.New(o.LogHandler(lines, level)),
		registry: registry, setupErrors: newSetupErrors(registry),
	}
}

// newServer makes the server. It also returns the server's answer to id.server,
// which differs between processes.
func newServer(b base, l limits, metrics *server.Metrics, now func() time.Time) (srv *server.Server, identity string, err error) {
	identity = "nodens " + rand.Text()[:10] // does not reveal the version
	srv, err = b.opts.newServer(server.Config{
		Identity: identity, Logger: b.log, Metrics: metrics, Now: now, Workers: l.workers, Queue: int(l.queue),
		MaxMisses: l.misses, MaxMissesPerClient: l.missesPerClient,
		TCP: server.TCPLimits{Connections: l.conns, PerClient: l.connsPerClient, Unread: l.unread},
	}, time.Now)
	return srv, identity, err
}

func newRedirector(b base, srv *server.Server, host *hostSetup, workers int, identity string, reloads reloadRequests, live *liveness) *redirect.Redirector {
	return redirect.New(redirect.Config{
		Queries:   srv.Queries,
		TakePorts: func() error { return srv.EachPort(bpf.TakePort) }, InputBlocked: host.inputBlocked,
		Logger: b.log, Registerer: b.registry, Workers: workers, Identity: identity, PodLogs: b.opts.Redirect.PodLogs, Restarted: b.opts.Supervisor.Restarted(),
		Reload: func() { reloads.add("redirection failed") }, Answered: live.answered, Withdrawn: live.withdrawn,
		Pinned: newPinMark(b).set,
	})
}

// newDaemon makes the parts. Nothing runs yet. The goroutines of upstream pools end
// with ctx.
func newDaemon(ctx context.Context, b base, files *corefiles, cfg source) (*daemon, error) {
	o := b.opts
	now, err := clock(o.Getenv)
	if err = errors.Join(err, o.CheckStatus()); err != nil {
		return nil, err
	}
	limits := o.limits(o.resources(cfg.Config))
	limits.report(b)
	metrics, err := server.NewMetrics(b.registry, limits.workers)
	if err != nil {
		return nil, err
	}
	srv, identity, err := newServer(b, limits, metrics, now)
	if err != nil {
		return nil, err
	}
	host, err := newHostSetup(b, cfg)
	if err != nil {
		return nil, err
	}
	reloads := make(reloadRequests, 1)
	fast := fastpath.New(b.log, b.registry, limits.cache/2, planFastpath(o, cfg), metrics)
	store, memory := newCache(o.Root, limits, cache.Options{
		Bytes: limits.cache - fast.Reserved(), Now: now, Kernel: fast,
	}, b.log)
	live := newLiveness(o.Supervisor, probeAny(srv), b.log)
	redir := newRedirector(b, srv, host, limits.workers, identity, reloads, live)
	loops := newLoopProber(b.registry, b.log)
	pools := newPools(ctx, poolsConfig{
		Logger: b.log, Metrics: upstream.NewMetrics(b.registry), NoHedge: !o.Hedge, Changed: loops.request, Recovered: store.ForgetFailures,
		Limits: upstream.Limits{Sockets: limits.upstreamSockets, Conns: limits.upstreamConns, Pending: limits.misses},
		Own:    func(a netip.AddrPort) bool { return o.isLocal(a) || redir.Plan().IsTarget(a) },
	})
	lines, probes, caches := newQueryLog(o.Stdout, b.registry), new(probeState), newCacheMetrics(b.registry, store)
	reporter := newReporter(b, probes, pools, redir, fast, caches, metrics.QueryStats())
	taps := newTaps(b, limits.taps, srv.ReserveUnread)
	active := &activeConfig{
		base: b, server: srv, store: store, pools: pools, taps: taps, redirect: redir, fast: fast, host: host, reloads: reloads, loops: loops,
		builder: newBuilder(b, store, pools, taps, redir.Gate(), lines, probes, newStatusServer(b, reporter)), admin: newAdminServers(b.log),
		caches: caches, reporter: reporter, endpoints: newEndpointFollower(b, redir.Learn, pools.learn),
		keeper: configKeeper{o.Supervisor.Shared()}, stopWork: func() {},
	}
	return &daemon{
		base: b, lines: lines, memory: memory, host: host, redirect: redir, server: srv, active: active, liveness: live,
		handOver: newHandOver(o.CacheSnapshot, store, b.log), probes: probes,
		reloader: newReloader(b, files, active, reloads, srv.Failed()),
	}, nil
}

// steps lists the steps of the start. The stop reverses them. So traffic is directed
// to this process last, and away from it first.
func (d *daemon) steps(cfg source) []step {
	return []step{
		{"look for pinned programs", d.checkPins(cfg), nil},
		{"write the query log", d.lines.start, d.lines.stop},
		{"guard memory", d.memory.up, d.memory.down},
		{"set up addresses", d.host.ensureAddresses, d.host.removeAddresses},
		{"pass host firewalls", d.host.ensureAccepts, d.host.removeAccepts},
		{"prepare redirection", d.openRedirect(cfg), d.closeRedirect},
		{"serve", func(ctx context.Context) error { return d.active.use(ctx, cfg) }, d.active.stop},
		{"report to the supervisor", nil, d.liveness.down}, // begins when ready
		{"take over the cache", d.handOver.up, d.handOver.down},
		{"check our answers", d.checkAnswers, d.lameduck},
		{"steer traffic", d.host.ensureRules, d.host.removeRules},
		{"redirect sockets", d.startRedirect, d.withdrawRedirect},
		{"answer in the kernel", d.startFastpath, d.closeFastpath},
		{"drop privileges", d.dropPrivileges, nil},
		{"keep statistics of queries", d.active.reporter.start, d.active.reporter.stop},
		{"be ready", d.becomeReady, d.becomeUnready},
	}
}

// checkPins fails if redirection is off and this process cannot remove the programs that an
// earlier one pinned.
func (d *daemon) checkPins(cfg source) func(context.Context) error {
	if planRedirect(d.opts, cfg).Wanted() {
		return nil
	}
	return newPinMark(d.base).check
}

// openRedirect never fails: without redirection the daemon serves by address.
func (d *daemon) openRedirect(cfg source) func(context.Context) error {
	return func(ctx context.Context) error {
		plan := planRedirect(d.opts, cfg)
		d.host.setTargets(plan)
		d.redirect.Open(ctx, plan)
		return nil
	}
}

func (d *daemon) closeRedirect(context.Context) error {
	return errors.Join(d.redirect.Forget(), d.redirect.Close())
}

func (d *daemon) startRedirect(ctx context.Context) error {
	d.redirect.Start(ctx)
	return nil
}

func (d *daemon) withdrawRedirect(context.Context) error { return d.redirect.Withdraw() }

// checkAnswers sends to every address, through its socket, a query that needs no
// upstream. On a node without enough CPU, each of them is slow.
func (d *daemon) checkAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var errs []error
	for _, a := range d.server.Addrs() {
		if d.redirect.Plan().IsTarget(a) {
			continue // checked when redirection starts
		}
		if err := server.Ask(ctx, reachable(a)); err != nil {
			errs = append(errs, fmt.Errorf("no answer on %v: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// lameduck continues to serve for the time that the health directive sets.
func (d *daemon) lameduck(context.Context) error {
	if !d.probes.ready.Load() || d.active.app.lameduck == 0 {
		return nil
	}
	d.log.Info("lameduck", "duration", d.active.app.lameduck)
	<-time.After(d.active.app.lameduck)
	return nil
}

func (d *daemon) dropPrivileges(context.Context) error {
	if d.opts.KeepPrivileges {
		return nil
	}
	return dropPrivileges(neededCapabilities(d.host.host != nil || d.active.fast.Active(), d.redirect.NeedsBPF()), d.log)
}

// becomeReady answers /ready, writes the PID file and prints the banner.
func (d *daemon) becomeReady(ctx context.Context) error {
	if err := d.pidfile.write(d.opts.PIDFile, d.opts.Supervisor.PID()); err != nil {
		d.log.Error("running without a PID file", "error", err) // CoreDNS continues, too
	}
	if wrong := wrongClusterIP(d.opts); wrong != "" {
		d.log.Warn("pods that query the Service kube-dns do not reach nodens by this address", "error", wrong)
	}
	d.probes.ready.Store(true)
	d.liveness.up(ctx)
	if err := d.printBanner(); err != nil { // for example a full disk: serve anyway
		d.log.Warn("printing the addresses to standard output failed", "error", err)
	}
	return nil
}

// becomeUnready fails /ready and removes the PID file.
func (d *daemon) becomeUnready(context.Context) error {
	d.probes.stopping.Store(true)
	return d.pidfile.remove()
}

// reachable returns a, or loopback if a is the wildcard, which accepts both
// address families.
func reachable(a netip.AddrPort) netip.AddrPort {
	if a.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	}
	return a
}
