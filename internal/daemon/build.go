package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// app is one configuration, built and not yet in use.
type app struct {
	cfg       source
	bindings  []server.Binding
	plan      redirect.Plan
	fast      fastpath.Plan
	targets   []server.Binding // of plan
	zones     []*server.Zone
	endpoints []endpoint
	caches    []cacheOf
	pools     map[string]bool // keys in builder.pools
	taps      map[string]bool // keys of builder.taps in use
	// usesEndpoints: one of the pools uses the endpoints of the cluster's DNS.
	usesEndpoints bool
	hosts         []*hostsFile
	search        *searchList // nil: normalize does not use it
	lameduck      time.Duration
	timeouts      map[netip.AddrPort]server.TCPTimeouts
	debug         bool
	blockRate     int            // of the blocking profile
	reload        *config.Reload // nil: only on a signal
}

// cacheOf is a cache and the labels of its metrics.
type cacheOf struct {
	id            string // in the store
	server, zones string
	cache         *cache.Cache
}

// builder makes configurations. Its methods belong to one goroutine.
type builder struct {
	base
	store      *cache.Store
	pools      *pools
	taps       *taps
	gate       *server.Gate // of redirection targets
	lines      *lineWriter
	queries    *slog.Logger // the query log, writes to lines
	probes     *probeState
	status     *statusServer
	resolvConf string // of the host
}

func newBuilder(b base, store *cache.Store, pools *pools, taps *taps, gate *server.Gate, lines *lineWriter, probes *probeState, status *statusServer) *builder {
	return &builder{
		base: b, store: store, pools: pools, taps: taps, gate: gate, lines: lines, probes: probes, status: status,
		queries: slog.New(b.opts.LogHandler(lines, nil)), resolvConf: hostResolvConf,
	}
}

// build makes all parts of cfg. It does not change what runs, but it may add pools
// to b.pools and caches to b.store.
func (b *builder) build(cfg source) (*app, error) {
	a := &app{cfg: cfg, timeouts: make(map[netip.AddrPort]server.TCPTimeouts), pools: make(map[string]bool), taps: make(map[string]bool)}
	byAddr := make(map[netip.AddrPort][]*server.Zone)
	var errs []error
	for _, block := range cfg.Blocks {
		if err := b.block(a, block, byAddr); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if b.opts.SetupMetrics != "" && !b.opts.Sample && len(b.opts.LocalIPs) > 0 {
		a.endpoints = append(a.endpoints, b.setupErrorsEndpoint())
	}
	a.endpoints = append(a.endpoints, b.status.endpoints()...)
	if a.reload == nil && b.opts.Reload {
		a.reload = &config.Reload{Interval: 30 * time.Second}
	}
	for addr, zones := range byAddr {
		a.bindings = append(a.bindings, server.Binding{Addr: addr, Zones: zones, TCP: a.timeouts[addr], Guarded: b.opts.guarded(addr)})
	}
	a.plan, a.fast = planRedirect(b.opts, cfg), planFastpath(b.opts, cfg)
	var err error
	if a.targets, err = a.plan.Bindings(byAddr, b.gate); err != nil {
		a.plan.Err = err
	}
	return a, nil
}

// block adds one server block to a and its zones to byAddr.
func (b *builder) block(a *app, block *config.Block, byAddr map[netip.AddrPort][]*server.Zone) error {
	where := func(line int, directive string, err error) error {
		return &config.Error{File: block.File, Line: line, Directive: directive, Err: err}
	}
	addrs, err := bindAddrs(block)
	if err != nil {
		return where(block.Line, "bind", err)
	}
	readers, readersKey := b.taps.open(block, a.taps)
	sources, key, err := b.sources(a, block, readers, readersKey, where)
	if err != nil {
		return err
	}
	normalise, err := b.normalise(a, block)
	if err != nil {
		return where(block.Line, "normalize", err)
	}
	actions, err := buildActions(block)
	if err != nil {
		return where(block.Line, "", err)
	}
	c := b.cache(a, block, addrs, key)
	queries, failures := b.queryLog(block), b.errorLog(block)
	for _, z := range block.Zones {
		zone := &server.Zone{Name: z.Name, Cache: c, Sources: sources, Log: queries, Errors: failures, Normalise: normalise, Actions: actions}
		if zone.Cut, err = b.searchCut(block, z.Name); err != nil {
			return where(block.Line, "search_cut", err)
		}
		zone.Tap = readers.clients(z.Name)
		if block.Loop {
			zone.Loop = server.NewLoopProbe(z.Name)
		}
		a.zones = append(a.zones, zone)
		for _, addr := range addrs {
			ap := netip.AddrPortFrom(addr, b.opts.portOf(z))
			byAddr[ap] = append(byAddr[ap], zone)
			if block.Timeouts != nil {
				a.timeouts[ap] = tcpTimeouts(block.Timeouts)
			}
		}
	}
	b.admin(a, block)
	return nil
}

// searchCut makes the cuts of one zone of a block, or nil if it has none.
func (b *builder) searchCut(block *config.Block, zone string) (*server.SearchCut, error) {
	if !block.Cuts() {
		return nil, nil
	}
	var domains []string
	for _, d := range block.SearchCut.Zones {
		if dns.IsSubDomain(zone, d) {
			domains = append(domains, d)
		}
	}
	if len(domains) == 0 {
		return nil, nil
	}
	return server.NewSearchCut(domains, b.log)
}

// sources makes the sources of a block in the order in which the server tries them:
// template, hosts, sample, forward, whoami. The returned key is equal for blocks
// whose sources give the same answers.
func (b *builder) sources(a *app, block *config.Block, readers tapList, readersKey string, where func(int, string, error) error) (sources []server.NamedSource, key string, err error) {
	add := func(name string, s server.Source) {
		sources = append(sources, server.NamedSource{Name: name, Source: s})
	}
	if len(block.Templates) > 0 {
		t, k, err := buildTemplates(block)
		if err != nil {
			return nil, "", where(block.Templates[0].Line, "template", err)
		}
		sources = append(sources, server.NamedSource{Name: "template", Client: t})
		key += k
	}
	if block.Hosts != nil {
		h, err := newHostsFile(block, b.log)
		if err != nil {
			return nil, "", where(block.Hosts.Line, "hosts", err)
		}
		a.hosts = append(a.hosts, h)
		add("hosts", h.hosts)
		key += block.Hosts.Key() + "\n"
	}
	if block.Sample {
		s, err := upstream.Sample()
		if err != nil {
			return nil, "", where(block.Line, "sample", err)
		}
		add("sample", s)
		key += "sample\n"
	}
	forwards, k, err := b.forwards(a, block, readers, readersKey, where)
	if err != nil {
		return nil, "", err
	}
	sources, key = append(sources, forwards...), key+k
	if block.Whoami {
		sources = append(sources, server.NamedSource{Name: "whoami", Client: action.Whoami{}})
	}
	return sources, key, nil
}

// forwards opens the upstream pools of a block, see sources.
func (b *builder) forwards(a *app, block *config.Block, readers tapList, readersKey string, where func(int, string, error) error) (sources []server.NamedSource, key string, err error) {
	for _, f := range block.Forwards {
		k := poolKey(f)
		p, err := b.pools.open(k+readersKey, f, readers.forwarder(f.From))
		if err != nil {
			return nil, "", where(f.Line, "forward", err)
		}
		a.pools[k+readersKey] = true
		a.usesEndpoints = a.usesEndpoints || f.KubernetesEndpoints
		sources = append(sources, server.NamedSource{Name: "forward", Source: p})
		key += k + "\n"
	}
	return sources, key, nil
}

// cache opens the block's cache in the store. A block keeps its entries after a
// reload if its zones, addresses and sources are the same.
func (b *builder) cache(a *app, block *config.Block, addrs []netip.Addr, sources string) *cache.Cache {
	if block.Cache == nil {
		return nil
	}
	names, keys := make([]string, len(block.Zones)), make([]string, len(block.Zones))
	for i, z := range block.Zones {
		names[i], keys[i] = z.Name, fmt.Sprint(z.Name, b.opts.portOf(z))
	}
	id := fmt.Sprintf("%q %v\n%s", keys, addrs, sources)
	c := cacheOf{
		id:     id,
		server: "dns://" + netip.AddrPortFrom(addrs[0], b.opts.portOf(block.Zones[0])).String(),
		zones:  strings.Join(names, " "),
		cache:  b.store.Cache(id, cachePolicy(block.Cache)),
	}
	a.caches = append(a.caches, c)
	return c.cache
}

func cachePolicy(c *config.Cache) cache.Policy {
	class := func(k config.CacheClass) cache.Class {
		return cache.Class{
			Entries: k.Entries, MinTTL: k.MinTTL, MaxTTL: k.MaxTTL, MinTTLSet: k.MinTTLSet,
			Disabled: k.Disabled, DisabledOnly: k.DisabledOnly,
		}
	}
	p := cache.Policy{
		Success: class(c.Success), Denial: class(c.Denial), Zones: c.Zones,
		ServFail: c.ServFail, KeepTTL: c.KeepTTL,
	}
	if c.Prefetch != nil {
		p.Prefetch = cache.Prefetch(*c.Prefetch)
	}
	if c.Stale != nil {
		p.StaleFor, p.StaleVerify = c.Stale.For, c.Stale.Verify
	}
	return p
}

func (b *builder) queryLog(block *config.Block) *server.QueryLog {
	if len(block.Log) == 0 {
		return nil
	}
	bits := map[config.LogClass]server.LogClass{
		config.LogAll: server.LogAll, config.LogSuccess: server.LogSuccess,
		config.LogDenial: server.LogDenial, config.LogError: server.LogError,
	}
	var rules []server.LogRule
	for _, l := range block.Log {
		var classes server.LogClass
		for _, c := range l.Classes {
			classes |= bits[c]
		}
		var format *server.LogFormat
		if l.Format != "" {
			format = server.ParseLogFormat(l.Format, block.Metadata)
		}
		for _, n := range l.Names {
			rules = append(rules, server.LogRule{Name: n, Classes: classes, Format: format})
		}
	}
	return server.NewQueryLog(b.queries, b.lines, rules)
}

func (b *builder) errorLog(block *config.Block) *server.ErrorLog {
	if block.Errors == nil {
		return nil
	}
	var rules []server.Consolidation
	for _, c := range block.Errors.Consolidate {
		rules = append(rules, server.Consolidation{Period: c.Period, Pattern: c.Pattern, Level: c.Level, ShowFirst: c.ShowFirst})
	}
	return server.NewErrorLog(b.log, rules)
}

// admin adds the block's settings for the whole process.
func (b *builder) admin(a *app, block *config.Block) {
	if block.Health != nil {
		a.endpoints = append(a.endpoints, endpoint{addr: block.Health.Addr, path: "/health", handler: http.HandlerFunc(b.probes.serveHealth)})
		a.lameduck = max(a.lameduck, block.Health.Lameduck)
	}
	if block.Ready != nil {
		a.endpoints = append(a.endpoints, endpoint{addr: block.Ready.Addr, path: "/ready", handler: http.HandlerFunc(b.probes.serveReady)})
	}
	if block.Prometheus != nil {
		h := promhttp.HandlerFor(b.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
		a.endpoints = append(a.endpoints, endpoint{addr: block.Prometheus.Addr, path: "/metrics", handler: h})
	}
	a.debug = a.debug || block.Debug
	if block.Pprof != nil {
		a.endpoints = append(a.endpoints, pprofEndpoints(block.Pprof.Addr)...)
		a.blockRate = max(a.blockRate, block.Pprof.BlockRate)
	}
	if block.Reload != nil && block.Reload.Interval > 0 {
		a.reload = block.Reload
	}
}

// setupErrorsEndpoint is -metrics-listen-address. As in node-cache, the daemon
// serves DNS even if another process uses the port.
func (b *builder) setupErrorsEndpoint() endpoint {
	reg := prometheus.NewRegistry()
	reg.MustRegister(b.setupErrors)
	h := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return endpoint{addr: b.opts.SetupMetrics, path: "/metrics", handler: h, optional: true}
}
