package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// app is one configuration, built and not yet in use.
type app struct {
	cfg       source
	bindings  []server.Binding
	plan      redirect.Plan
	targets   []server.Binding // of plan
	zones     []*server.Zone
	endpoints []endpoint
	caches    []cacheOf
	pools     map[string]bool // keys in daemon.pools
	// asksEndpoints: of the pools, one wants the endpoints of the cluster's DNS.
	asksEndpoints bool
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
	id            string
	server, zones string
	cache         *cache.Cache
}

// hostsFile is a hosts directive with the file it watches.
type hostsFile struct {
	hosts    *upstream.Hosts
	path     string
	content  content       // of the file, from before it was read
	interval time.Duration // 0: read once
}

// build makes everything that cfg asks for, and changes nothing that runs
// except that pools may be added to d.pools.
func (d *daemon) build(cfg source) (*app, error) {
	a := &app{cfg: cfg, timeouts: make(map[netip.AddrPort]server.TCPTimeouts), pools: make(map[string]bool)}
	byAddr := make(map[netip.AddrPort][]*server.Zone)
	var errs []error
	for _, b := range cfg.Blocks {
		if err := d.buildBlock(a, b, byAddr); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if d.opts.SetupMetrics != "" && !d.opts.Sample && len(d.opts.LocalIPs) > 0 {
		a.endpoints = append(a.endpoints, d.setupErrorsEndpoint())
	}
	if a.reload == nil && d.opts.Reload {
		a.reload = &config.Reload{Interval: 30 * time.Second}
	}
	for addr, zones := range byAddr {
		a.bindings = append(a.bindings, server.Binding{Addr: addr, Zones: zones, TCP: a.timeouts[addr], Guarded: d.guarded(addr)})
	}
	a.plan = d.planRedirect(cfg)
	var err error
	if a.targets, err = a.plan.Bindings(byAddr, d.redirect.Gate()); err != nil {
		a.plan.Err = err
	}
	return a, nil
}

// buildBlock adds one server block to a and its zones to byAddr.
func (d *daemon) buildBlock(a *app, b *config.Block, byAddr map[netip.AddrPort][]*server.Zone) error {
	where := func(line int, directive string, err error) error {
		return &config.Error{File: b.File, Line: line, Directive: directive, Err: err}
	}
	addrs, err := bindAddrs(b)
	if err != nil {
		return where(b.Line, "bind", err)
	}
	sources, key, err := d.sources(a, b, where)
	if err != nil {
		return err
	}
	normalise, err := d.normalise(a, b)
	if err != nil {
		return where(b.Line, "normalize", err)
	}
	actions, err := buildActions(b)
	if err != nil {
		return where(b.Line, "", err)
	}
	c := d.openCache(a, b, addrs, key)
	queries, failures := d.queryLog(b), d.errorLog(b)
	for _, z := range b.Zones {
		zone := &server.Zone{Name: z.Name, Cache: c, Sources: sources, Log: queries, Errors: failures, Normalise: normalise, Actions: actions}
		if b.Loop {
			zone.Loop = server.NewLoopProbe(z.Name)
		}
		a.zones = append(a.zones, zone)
		for _, addr := range addrs {
			ap := netip.AddrPortFrom(addr, d.portOf(z))
			byAddr[ap] = append(byAddr[ap], zone)
			if b.Timeouts != nil {
				a.timeouts[ap] = tcpTimeouts(b.Timeouts)
			}
		}
	}
	d.buildAdmin(a, b)
	return nil
}

// sources makes the sources of a block in the order in which they are asked:
// template, hosts, sample, forward, whoami. key tells apart blocks whose answers may differ.
func (d *daemon) sources(a *app, b *config.Block, where func(int, string, error) error) ([]server.NamedSource, string, error) {
	var sources []server.NamedSource
	var key strings.Builder
	if len(b.Templates) > 0 {
		t, err := buildTemplates(b, &key)
		if err != nil {
			return nil, "", where(b.Templates[0].Line, "template", err)
		}
		sources = append(sources, server.NamedSource{Name: "template", Source: t})
	}
	if b.Hosts != nil {
		h, err := d.newHosts(b)
		if err != nil {
			return nil, "", where(b.Hosts.Line, "hosts", err)
		}
		a.hosts = append(a.hosts, h)
		sources = append(sources, server.NamedSource{Name: "hosts", Source: h.hosts})
		key.WriteString(b.Hosts.Key() + "\n")
	}
	if b.Sample {
		s, err := upstream.Sample()
		if err != nil {
			return nil, "", where(b.Line, "sample", err)
		}
		sources = append(sources, server.NamedSource{Name: "sample", Source: s})
		key.WriteString("sample\n")
	}
	for _, f := range b.Forwards {
		k := poolKey(f)
		p, err := d.pools.open(k, f)
		if err != nil {
			return nil, "", where(f.Line, "forward", err)
		}
		a.pools[k] = true
		a.asksEndpoints = a.asksEndpoints || f.KubernetesEndpoints
		sources = append(sources, server.NamedSource{Name: "forward", Source: p})
		key.WriteString(k + "\n")
	}
	if b.Whoami {
		sources = append(sources, server.NamedSource{Name: "whoami", Source: server.Whoami{}})
	}
	return sources, key.String(), nil
}

// portOf is the port that a zone is served on.
func (d *daemon) portOf(z config.Zone) uint16 {
	if z.Port == 0 {
		return d.opts.DNSPort
	}
	return z.Port
}

func (d *daemon) newHosts(b *config.Block) (*hostsFile, error) {
	zones := zonesOr(b.Hosts.Zones, b)
	read := contentOf([]string{b.Hosts.Path})
	h, err := upstream.NewHosts(upstream.HostsConfig{
		Path: b.Hosts.Path, Zones: zones, Inline: inlineHosts(b.Hosts.Inline), TTL: b.Hosts.TTL,
		NoReverse: b.Hosts.NoReverse, Fallthrough: b.Hosts.Fallthrough,
		FallthroughUnsupported: b.Hosts.FallthroughUnsupported, Logger: d.log,
	})
	return &hostsFile{hosts: h, path: b.Hosts.Path, content: read, interval: b.Hosts.Reload}, err
}

// openCache opens the block's cache in the store. A block that is served at
// the same place and answers from the same sources after a reload keeps its
// entries.
func (d *daemon) openCache(a *app, b *config.Block, addrs []netip.Addr, sources string) *cache.Cache {
	if b.Cache == nil {
		return nil
	}
	names, keys := make([]string, len(b.Zones)), make([]string, len(b.Zones))
	for i, z := range b.Zones {
		names[i], keys[i] = z.Name, fmt.Sprint(z.Name, d.portOf(z))
	}
	id := fmt.Sprintf("%q %v\n%s", keys, addrs, sources)
	c := cacheOf{
		id:     id,
		server: "dns://" + netip.AddrPortFrom(addrs[0], d.portOf(b.Zones[0])).String(),
		zones:  strings.Join(names, " "),
		cache:  d.store.Cache(id, cachePolicy(b.Cache)),
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

func (d *daemon) queryLog(b *config.Block) *server.QueryLog {
	if len(b.Log) == 0 {
		return nil
	}
	bits := map[config.LogClass]server.LogClass{
		config.LogAll: server.LogAll, config.LogSuccess: server.LogSuccess,
		config.LogDenial: server.LogDenial, config.LogError: server.LogError,
	}
	var rules []server.LogRule
	for _, l := range b.Log {
		var classes server.LogClass
		for _, c := range l.Classes {
			classes |= bits[c]
		}
		var format *server.LogFormat
		if l.Format != "" {
			format = server.ParseLogFormat(l.Format, b.Metadata)
		}
		for _, n := range l.Names {
			rules = append(rules, server.LogRule{Name: n, Classes: classes, Format: format})
		}
	}
	return server.NewQueryLog(d.queries, d.lines, rules)
}

func (d *daemon) errorLog(b *config.Block) *server.ErrorLog {
	if b.Errors == nil {
		return nil
	}
	var rules []server.Consolidation
	for _, c := range b.Errors.Consolidate {
		rules = append(rules, server.Consolidation{Period: c.Period, Pattern: c.Pattern, Level: c.Level, ShowFirst: c.ShowFirst})
	}
	return server.NewErrorLog(d.log, rules)
}

// buildAdmin adds what the block asks of the process as a whole.
func (d *daemon) buildAdmin(a *app, b *config.Block) {
	if b.Health != nil {
		a.endpoints = append(a.endpoints, endpoint{addr: b.Health.Addr, path: "/health", handler: http.HandlerFunc(d.state.serveHealth)})
		a.lameduck = max(a.lameduck, b.Health.Lameduck)
	}
	if b.Ready != nil {
		a.endpoints = append(a.endpoints, endpoint{addr: b.Ready.Addr, path: "/ready", handler: http.HandlerFunc(d.state.serveReady)})
	}
	if b.Prometheus != nil {
		h := promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
		a.endpoints = append(a.endpoints, endpoint{addr: b.Prometheus.Addr, path: "/metrics", handler: h})
	}
	a.debug = a.debug || b.Debug
	if b.Pprof != nil {
		a.endpoints = append(a.endpoints, pprofEndpoints(b.Pprof.Addr)...)
		a.blockRate = max(a.blockRate, b.Pprof.BlockRate)
	}
	if b.Reload != nil && b.Reload.Interval > 0 {
		a.reload = b.Reload
	}
}

// setupErrorsEndpoint is -metrics-listen-address. Somebody else's port is no
// reason not to serve DNS, as in node-cache.
func (d *daemon) setupErrorsEndpoint() endpoint {
	reg := prometheus.NewRegistry()
	reg.MustRegister(d.metrics.setupErrors)
	h := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return endpoint{addr: d.opts.SetupMetrics, path: "/metrics", handler: h, optional: true}
}

// bindAddrs resolves the bind directive: addresses as they stand, interface
// names to their addresses. Without it a block is served on every address.
func bindAddrs(b *config.Block) ([]netip.Addr, error) {
	if len(b.Bind) == 0 {
		return []netip.Addr{wildcard()}, nil
	}
	var addrs []netip.Addr
	for _, s := range b.Bind {
		if a, err := netip.ParseAddr(s); err == nil {
			addrs = append(addrs, a)
			continue
		}
		found, err := interfaceAddrs(s, b.BindExcept)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, found...)
	}
	return addrs, nil
}

// wildcard is [::], which takes IPv4 as well, where the kernel has IPv6.
func wildcard() netip.Addr {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func interfaceAddrs(name string, except []string) ([]netip.Addr, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%q is neither an IP address nor an interface of this host", name)
	}
	list, err := ifi.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || contains(except, p.Addr()) {
			continue
		}
		ip := p.Addr()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(name)
		}
		addrs = append(addrs, ip)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("interface %s has no address", name)
	}
	return addrs, nil
}

func contains(list []string, a netip.Addr) bool {
	for _, s := range list {
		if b, err := netip.ParseAddr(s); err == nil && b == a {
			return true
		}
	}
	return false
}
