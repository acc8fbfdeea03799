package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/querystats"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/state"
	"github.com/nodens-dns/nodens/internal/tick"
)

// reporter makes the State of the daemon from its metrics and components. Its
// methods are safe for concurrent use.
type reporter struct {
	base
	node     string
	started  time.Time
	probes   *probeState
	pools    *pools
	redirect *redirect.Redirector
	fast     *fastpath.Controller
	caches   *cacheMetrics
	queries  *querystats.Stats
	pods     *podNames
	inUse    atomic.Pointer[config.Config] // nil: none yet

	end func() // ends the goroutine that rotates

	mu   sync.Mutex // guards last
	last state.State
}

func newReporter(b base, probes *probeState, p *pools, r *redirect.Redirector, f *fastpath.Controller, caches *cacheMetrics, queries *querystats.Stats) *reporter {
	host, _ := os.Hostname()
	return &reporter{
		base: b, node: cmp.Or(b.opts.Getenv("NODE_NAME"), host), started: time.Now(),
		probes: probes, pools: p, redirect: r, fast: f, caches: caches,
		queries: queries, pods: newPodNames(b.opts.Path(cniResults)), end: func() {},
	}
}

// start starts the goroutine that rotates the statistics.
func (r *reporter) start(ctx context.Context) error {
	r.end = background(ctx, func(ctx context.Context) {
		tick.Call(ctx, querystats.Interval, func() { r.queries.Rotate(time.Now()) })
	})
	return nil
}

func (r *reporter) stop(context.Context) error {
	r.end()
	return nil
}

// use makes later States report cfg.
func (r *reporter) use(cfg *config.Config) { r.inUse.Store(cfg) }

// stateAge is the time for which all viewers get the same counters and lists.
const stateAge = time.Second / 2

// state returns the State with the lists of a zone, or of all zones if zone is empty. The
// caller must not modify it.
func (r *reporter) state(zone string) state.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last.Time) >= stateAge {
		r.last = r.measure()
		r.last.Top = r.top("")
	}
	s := r.last
	if zone != "" {
		s.Top = r.top(zone)
	}
	return s
}

func (r *reporter) measure() state.State {
	cfg := r.inUse.Load()
	if cfg == nil {
		cfg = new(config.Config)
	}
	m := gather(r.registry)
	s := state.State{
		Version: r.opts.Version, Node: r.node, Started: r.started, Time: time.Now(),
		Ready:    r.probes.ready.Load() && !r.probes.stopping.Load(),
		Rcodes:   m.sums("coredns_dns_responses_total", "rcode"),
		Cache:    state.Cache{Bytes: int64(m.sum("nodens_cache_bytes")), Budget: int64(m.sum("nodens_cache_budget_bytes"))},
		Zones:    r.zones(m),
		Corefile: cfg.Corefile, Addresses: texts(r.opts.addresses(cfg)),
	}
	s.Failures = s.Rcodes["SERVFAIL"]
	for _, z := range s.Zones {
		s.Requests, s.Hits, s.Misses = s.Requests+z.Requests, s.Hits+z.Hits, s.Misses+z.Misses
	}
	s.Upstreams = r.upstreams(m, cfg)
	s.Redirection, s.Fastpath = r.redirection(m, cfg), r.fastpath(m, cfg)
	s.Problems = problems(&s, m)
	return s
}

// zones returns the zones in use, and earlier zones that got queries.
func (r *reporter) zones(m metrics) []state.Zone {
	zones := make(map[string]*state.Zone)
	of := func(name string) *state.Zone {
		if zones[name] == nil {
			zones[name] = &state.Zone{Name: name}
		}
		return zones[name]
	}
	for name, n := range m.sums("coredns_dns_requests_total", "zone") {
		of(name).Requests = n
	}
	for name, n := range m.sums("coredns_cache_hits_total", "zones") {
		of(name).Hits = n
	}
	for name, n := range m.sums("coredns_cache_misses_total", "zones") {
		of(name).Misses = n
	}
	for name, n := range m.where("rcode", "SERVFAIL").sums("coredns_dns_responses_total", "zone") {
		of(name).Failures = n
	}
	for _, c := range r.caches.all() {
		st := c.cache.Stats()
		for name := range strings.SplitSeq(c.zones, " ") {
			of(name).CacheEntries += int64(st.Success.Entries + st.Denial.Entries + st.Failure.Entries)
			of(name).CacheBytes += st.Success.Bytes + st.Denial.Bytes + st.Failure.Bytes
		}
	}
	for name, z := range zones {
		z.HitLatency, z.MissLatency = r.latencies(name)
	}
	list := make([]state.Zone, 0, len(zones))
	for _, z := range zones {
		list = append(list, *z)
	}
	slices.SortFunc(list, func(a, b state.Zone) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// latencies returns the latencies of hits and of misses of a zone.
func (r *reporter) latencies(zone string) (hit, miss state.Latency) {
	h, m := r.queries.Latency(r.queries.Zone(zone))
	return latency(h.Count, h.P50, h.P90, h.P99), latency(m.Count, m.P50, m.P90, m.P99)
}

func latency(n uint64, p50, p90, p99 time.Duration) state.Latency {
	return state.Latency{Count: n, P50: p50.Seconds(), P90: p90.Seconds(), P99: p99.Seconds()}
}

func (r *reporter) upstreams(m metrics, cfg *config.Config) []state.Upstream {
	queries, replies := m.sums("coredns_forward_requests_total", "to"), m.sums("coredns_forward_responses_total", "to")
	all := []state.Upstream{}
	for _, p := range r.pools.all() {
		zone := zonesOf(cfg, p.forward)
		for _, s := range p.Servers() {
			to := s.Addr.String()
			all = append(all, state.Upstream{
				Zone: zone, Address: to, Protocol: s.Protocol, Healthy: !s.Dead,
				Queries: queries[to], Failures: max(queries[to], replies[to]) - replies[to],
				Latency: latency(s.Times.Count, s.Times.P50, s.Times.P90, s.Times.P99),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b state.Upstream) int { return strings.Compare(a.Zone, b.Zone) })
	return all
}

// zonesOf returns the zones that use a forward: its own, or those of its server blocks.
func zonesOf(cfg *config.Config, f *config.Forward) string {
	if f.From != "." {
		return f.From
	}
	var zones []string
	for _, b := range cfg.Blocks {
		if slices.ContainsFunc(b.Forwards, func(other *config.Forward) bool { return other.Key() == f.Key() }) {
			for _, z := range b.Zones {
				zones = append(zones, z.Name)
			}
		}
	}
	return strings.Join(zones, " ")
}

func (r *reporter) redirection(m metrics, cfg *config.Config) state.Redirection {
	plan := r.redirect.Plan()
	s := state.Redirection{Mode: string(cfg.Redirect().Mode), Reason: r.redirect.Reason(), Services: []state.Service{}}
	for name, on := range m.sums("nodens_redirect_state", "state") {
		if on == 1 {
			s.State = name
		}
	}
	for _, v := range plan.Services {
		s.Services = append(s.Services, state.Service{Address: v.VIP.String(), Target: v.Target.String(), Fallbacks: texts(v.Fallbacks)})
	}
	return s
}

func texts(addrs []netip.AddrPort) []string {
	all := make([]string, len(addrs))
	for i, a := range addrs {
		all[i] = a.String()
	}
	return all
}

func (r *reporter) fastpath(m metrics, cfg *config.Config) state.Fastpath {
	f := state.Fastpath{
		Mode: string(cfg.Fastpath().Mode), State: "on",
		Answers: m.sum("nodens_kernel_answers_total"), Leases: m.sum("nodens_kernel_leases"), Entries: m.sum("nodens_kernel_entries"),
		Interfaces: m.sums("nodens_kernel_leases", "interface"),
	}
	switch {
	case cfg.Fastpath().Mode == config.FastpathOff:
		f.State = "off"
	case !r.fast.Active():
		f.State = "unavailable"
	}
	return f
}

// problems lists current failures.
func problems(s *state.State, m metrics) []string {
	all := []string{}
	if m.has("nodens_config_last_reload_successful") && m.sum("nodens_config_last_reload_successful") == 0 {
		all = append(all, "the last reload failed; the configuration before it is in use, see the log")
	}
	down := make(map[string]bool) // zones whose upstreams are all down
	for _, u := range s.Upstreams {
		if before, seen := down[u.Zone]; !seen || before {
			down[u.Zone] = !u.Healthy
		}
		if !u.Healthy {
			all = append(all, fmt.Sprintf("upstream %s of zone %s does not answer", u.Address, u.Zone))
		}
	}
	for _, u := range s.Upstreams {
		if down[u.Zone] {
			all = append(all, "all upstreams of zone "+u.Zone+" are down")
			down[u.Zone] = false
		}
	}
	for zone, n := range m.sums("nodens_loop_detected", "zone") {
		if n > 0 {
			all = append(all, "queries that zone "+zone+" forwards come back to this cache")
		}
	}
	for limit, n := range m.sums("nodens_limit_clamped", "limit") {
		if n > 0 {
			all = append(all, "-"+strings.ReplaceAll(limit, "_", "-")+" does not fit and is lowered")
		}
	}
	if s.Redirection.State == "failed" {
		all = append(all, strings.TrimSuffix("sockets are not redirected: "+s.Redirection.Reason, ": "))
	}
	slices.Sort(all)
	return all
}
