package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
	"github.com/nodens-dns/nodens/netsetup"
)

// drainTimeout bounds the look-ups that are under way at SIGTERM.
const drainTimeout = 4 * time.Second

// daemon is the process: what outlives configurations, and the one in use.
type daemon struct {
	opts      *Options
	log       *slog.Logger
	level     *slog.LevelVar // of log
	queries   *slog.Logger   // the query log
	lines     *lineWriter    // what queries writes to
	registry  *prometheus.Registry
	metrics   *configMetrics
	store     *cache.Store
	server    *server.Server
	admin     *adminServers
	pools     *pools
	redirect  *redirect.Redirector
	cluster   *clusterMetrics
	files     *corefiles
	host      *netsetup.Host // nil: we leave the host alone
	stopHost  func()         // ends host's watch
	handOver  *handOver
	stopGuard func() // ends the watch over memory; nil: there is none

	resolvConf string // of the host
	pidfile    pidFile
	vitals     *vitals
	state      state

	reloads chan string // why; drained by follow
	failing string      // the error of the last reload; owned by follow

	caches atomic.Pointer[[]cacheOf] // in use; for scrapes, which take no lock

	mu        sync.Mutex // guards app and its runners
	app       *app
	stopApp   context.CancelFunc
	appWork   sync.WaitGroup
	probeLoop chan struct{}
}

// newDaemon makes the parts that no configuration changes.
func newDaemon(ctx context.Context, o *Options) (*daemon, error) {
	level := new(slog.LevelVar)
	d := &daemon{
		opts: o, level: level,
		log:      slog.New(slog.NewTextHandler(o.Stderr, &slog.HandlerOptions{Level: level})),
		lines:    newLineWriter(o.Stdout),
		registry: prometheus.NewRegistry(),
		reloads:  make(chan string, 1), resolvConf: HostResolvConf,
		probeLoop: make(chan struct{}, 1),
	}
	d.level.Set(d.levelOf(false))
	d.queries = slog.New(slog.NewTextHandler(d.lines, nil))
	now, err := clock(o.Getenv)
	if err != nil {
		return nil, err
	}
	workers := runtime.GOMAXPROCS(0) // sockets that share an address
	serverMetrics, err := server.NewMetrics(d.registry, workers)
	if err != nil {
		return nil, err
	}
	d.store = cache.New(cache.Options{Bytes: d.budget(), Now: now})
	d.handOver = newHandOver(o.CacheSnapshot, d.store, d.log)
	d.metrics = newConfigMetrics(d.registry, d)
	d.cluster = newClusterMetrics(d.registry)
	d.files = &corefiles{opts: o, warn: func(err error) {
		d.log.Error("configuration", "error", err)
		d.metrics.setupErrors.WithLabelValues("configmap").Inc()
	}}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	self := "nodens " + rand.Text()[:10] // tells processes apart, to who asks for id.server; gives no version away
	c := server.Config{Identity: self, Logger: d.log, Metrics: serverMetrics, Now: now, Workers: workers}
	if d.server, err = o.Limits.newServer(c, time.Now); err != nil {
		return nil, err
	}
	d.admin = newAdminServers(d.log)
	d.openPools(ctx)
	d.vitals = newVitals(o.Supervisor, d.log)
	d.redirect = redirect.New(redirect.Config{
		Logger: d.log, Registerer: d.registry, Workers: workers, Identity: self, PodLogs: o.Redirect.PodLogs,
		Reload:   func() { d.askReload("redirection failed") },
		Answered: d.vitals.answered, Withdrawn: d.vitals.withdrawn,
	})
	return d, nil
}

// openPools makes the pools, of which each configuration opens its own.
func (d *daemon) openPools(ctx context.Context) {
	d.pools = newPools(ctx, d.log, upstream.NewMetrics(d.registry))
	d.pools.own, d.pools.patient = d.isOwn, !d.opts.Hedge
	d.pools.changed = d.askLoopProbe
}

// budget is the number of octets that cached answers may take.
func (d *daemon) budget() int64 {
	if d.opts.CacheSize > 0 {
		return d.opts.CacheSize
	}
	limit, _, limited := memoryLimit(os.DirFS("/"))
	return cacheBudget(limit, limited)
}

// isOwn reports whether we serve on addr because of -localip or of redirection.
func (d *daemon) isOwn(addr netip.AddrPort) bool {
	return addr.Port() == d.opts.DNSPort && slices.Contains(d.opts.LocalIPs, addr.Addr()) || d.redirect.Plan().IsTarget(addr)
}

// steps is the order in which the daemon starts; it stops in reverse. Traffic
// is steered to us last and away from us first.
func (d *daemon) steps(cfg source) []step {
	return []step{
		{"write the query log", d.lines.start, d.lines.stop},
		{"guard memory", d.guardMemory, d.unguardMemory},
		{"set up addresses", d.ensureAddresses, d.removeAddresses},
		{"pass host firewalls", d.ensureAccepts, d.removeAccepts},
		{"prepare redirection", d.openRedirect(cfg), d.closeRedirect},
		{"serve", func(ctx context.Context) error { return d.use(ctx, cfg) }, d.stopServing},
		{"be supervised", nil, d.endVitals}, // begins when ready
		{"take over the cache", d.handOver.up, d.handOver.down},
		{"ask ourselves", d.askOurselves, d.lameduck},
		{"steer traffic", d.ensureRules, d.removeRules},
		{"redirect sockets", d.startRedirect, d.withdrawRedirect},
		{"drop privileges", d.dropPrivileges, nil},
		{"be ready", d.becomeReady, d.becomeUnready},
	}
}

// use builds cfg and makes it the configuration in use. On an error the one
// before stays.
func (d *daemon) use(ctx context.Context, cfg source) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, err := d.build(cfg)
	if err != nil {
		d.keepOld()
		return err
	}
	resume := d.switchRedirect(ctx, a)
	if err := d.apply(ctx, a); err != nil {
		d.keepOld()
		resume(false)
		return err
	}
	d.replace(ctx, a)
	resume(true)
	d.followBinds(cfg)
	for _, w := range cfg.Warnings {
		d.log.Warn("configuration", "warning", w)
	}
	return nil
}

// apply opens what a listens on. All or nothing.
func (d *daemon) apply(ctx context.Context, a *app) error {
	commit, abort, err := d.admin.prepare(ctx, a.endpoints)
	if err != nil && d.opts.Sample {
		// Who only tries nodens may well use these ports.
		d.log.Warn("no /health, /ready and /metrics", "error", err)
		commit, abort, err = d.admin.prepare(ctx, nil)
	}
	if err != nil {
		return err
	}
	if err := d.listen(ctx, a); err != nil {
		abort()
		return d.explain(err)
	}
	commit()
	return nil
}

// listen goes without redirection where only its targets cannot be served.
func (d *daemon) listen(ctx context.Context, a *app) error {
	err := d.server.Apply(ctx, slices.Concat(a.bindings, a.targets))
	if err == nil || len(a.targets) == 0 {
		return err
	}
	if d.server.Apply(ctx, a.bindings) != nil {
		return err
	}
	a.targets, a.plan.Err = nil, err
	return nil
}

// keepOld drops what a failed build has left behind.
func (d *daemon) keepOld() {
	keep := map[string]bool{}
	if d.app != nil {
		keep = d.app.pools
	}
	d.pools.retain(keep)
	d.retainCaches()
}

// replace makes a the app in use, now that it is being served.
func (d *daemon) replace(ctx context.Context, a *app) {
	if d.stopApp != nil {
		d.stopApp()
		d.appWork.Wait()
	}
	d.app = a
	d.examine(a)
	d.caches.Store(&a.caches)
	d.metrics.loop.Reset()
	d.pools.retain(a.pools)
	d.retainCaches()
	appCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.stopApp = cancel
	d.appWork.Go(func() { d.followLoops(appCtx, a) })
	for _, h := range a.hosts {
		if h.interval > 0 {
			d.appWork.Go(func() { d.followHosts(appCtx, h) })
		}
	}
	if a.search != nil {
		d.appWork.Go(func() { d.followSearch(appCtx, a.search) })
	}
	if a.reload != nil {
		d.appWork.Go(func() { d.followCorefile(appCtx, a) })
	}
	if wantsEndpoints(a) {
		d.appWork.Go(func() { d.followEndpoints(appCtx) })
	}
}

func (d *daemon) retainCaches() {
	keep := make(map[string]bool)
	if d.app != nil {
		for _, c := range d.app.caches {
			keep[c.id] = true
		}
	}
	d.store.Retain(keep)
}

// stopServing ends the configuration in use, drained.
func (d *daemon) stopServing(ctx context.Context) error {
	d.mu.Lock()
	if d.stopApp != nil {
		d.stopApp()
		d.appWork.Wait()
	}
	d.mu.Unlock()
	drain, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	err := d.server.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		// As designed: a client that does not read is not waited for longer.
		d.log.Warn("look-ups were cut off", "error", err)
		err = nil
	}
	requests, cancelRequests := context.WithTimeout(ctx, drainTimeout/8)
	defer cancelRequests()
	err = errors.Join(err, d.admin.close(requests))
	d.pools.retain(nil)
	return err
}

// becomeReady answers /ready, writes the PID file, and says on standard output
// where we listen.
func (d *daemon) becomeReady(ctx context.Context) error {
	if err := d.pidfile.write(d.opts.PIDFile, d.vitals.pid); err != nil {
		d.log.Error("go without a PID file", "error", err) // as CoreDNS does
	}
	d.state.ready.Store(true)
	d.vitals.start(ctx, d.askAny)
	var where []string
	for _, a := range d.server.Addrs() {
		where = append(where, a.String())
	}
	slices.Sort(where)
	_, err := fmt.Fprintf(d.opts.Stdout, "nodens %s listens on %s (udp, tcp); try: %s\n", d.opts.Version, strings.Join(where, ", "), d.tryDig())
	if err != nil { // a full disk is no reason not to serve
		d.log.Warn("cannot say where we listen", "error", err)
	}
	return nil
}

func (d *daemon) endVitals(context.Context) error {
	d.vitals.stop()
	return nil
}

// becomeUnready tells the world that we are going.
func (d *daemon) becomeUnready(context.Context) error {
	d.state.stopping.Store(true)
	return d.pidfile.remove()
}

// tryDig is a command that shows that it works.
func (d *daemon) tryDig() string {
	cmd := "dig"
	addrs := slices.DeleteFunc(d.server.Addrs(), d.redirect.Plan().IsTarget)
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	if len(addrs) > 0 {
		a := addrs[0]
		host := a.Addr()
		if host.IsUnspecified() {
			host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		cmd += " @" + host.String()
		if a.Port() != 53 {
			cmd += fmt.Sprintf(" -p %d", a.Port())
		}
	}
	return cmd + " kubernetes.default.svc.cluster.local"
}

// lameduck goes on serving for as long as the health directive says.
func (d *daemon) lameduck(context.Context) error {
	if !d.state.ready.Load() || d.app.lameduck == 0 {
		return nil
	}
	d.log.Info("lameduck", "duration", d.app.lameduck)
	<-time.After(d.app.lameduck)
	return nil
}

// askOurselves proves that every address answers through the real socket. The
// question is one that is answered without asking anybody.
func (d *daemon) askOurselves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var errs []error
	for _, a := range d.server.Addrs() {
		if d.redirect.Plan().IsTarget(a) {
			continue // starting to redirect asks these
		}
		if err := server.Ask(ctx, reachable(a)); err != nil {
			errs = append(errs, fmt.Errorf("no answer on %v: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// reachable turns the wildcard, which takes both families, into an address
// that can be asked on any host.
func reachable(a netip.AddrPort) netip.AddrPort {
	if a.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	}
	return a
}
