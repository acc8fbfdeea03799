package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
	"github.com/nodens-dns/nodens/internal/watch"
)

// poolsConfig is what all pools share.
type poolsConfig struct {
	Logger  *slog.Logger
	Metrics *upstream.Metrics
	NoHedge bool // see upstream.PoolConfig
	// Sockets and Conns are those of all pools, Pending that of each.
	Limits upstream.Limits
	// Own reports whether the daemon itself serves on an address.
	Own func(netip.AddrPort) bool
	// Recovered is called after an upstream that was down has replied.
	Recovered func()
	// Changed is called after a resolv.conf or the API server has changed the
	// upstreams of a pool.
	Changed func()
}

// pools owns the upstream pools in use, by the settings of their forward. A reload
// that does not change a forward keeps its pool, with connections and health.
type pools struct {
	poolsConfig
	ctx     context.Context                  // of all pools' goroutines
	learned atomic.Pointer[[]netip.AddrPort] // the cluster DNS's endpoints; nil or empty: unknown

	mu    sync.Mutex // guards byKey
	byKey map[string]*runningPool
}

// runningPool is a Pool and its goroutines.
type runningPool struct {
	*upstream.Pool
	forward *config.Forward
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

func newPools(ctx context.Context, c poolsConfig) *pools {
	return &pools{poolsConfig: c, ctx: ctx, byKey: make(map[string]*runningPool)}
}

// poolKey is equal for forwards that can share a pool. A renewed certificate
// makes another key.
func poolKey(f *config.Forward) string {
	if f.TLS == nil {
		return f.Key()
	}
	return fmt.Sprintf("%s %x", f.Key(), watch.SumOf([]string{f.TLS.Cert, f.TLS.Key, f.TLS.CA}))
}

// open returns the pool of key. It makes one from f if there is none.
func (p *pools) open(key string, f *config.Forward, tap upstream.Tap) (*upstream.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.byKey[key]; ok {
		return r.Pool, nil
	}
	files := resolvConfs(f)
	read := watch.SumOf(files)
	endpoints, err := p.endpoints(f)
	if err != nil {
		return nil, err
	}
	c, err := poolConfig(f)
	if err != nil {
		return nil, err
	}
	c.Endpoints, c.Logger, c.Metrics, c.Now, c.NoHedge, c.Recovered = endpoints, p.Logger, p.Metrics, time.Now, p.NoHedge, p.Recovered
	c.Tap = tap
	pool, err := upstream.NewPool(c)
	if err != nil {
		return nil, err
	}
	p.byKey[key] = p.start(pool, f, files, read)
	p.divideLimits()
	return pool, nil
}

// divideLimits gives each pool an equal part of Limits; p.mu is held.
func (p *pools) divideLimits() {
	n, l := max(len(p.byKey), 1), p.Limits
	l.Sockets = max(min(l.Sockets/n, maxPoolSockets), 1)
	l.Conns = max(min(l.Conns/n, maxPoolConns), 1)
	for _, r := range p.byKey {
		r.SetLimits(l)
	}
}

// start runs the pool and follows the files that its upstreams come from.
func (p *pools) start(pool *upstream.Pool, f *config.Forward, files []string, read watch.Sum) *runningPool {
	ctx, cancel := context.WithCancel(p.ctx)
	r := &runningPool{Pool: pool, forward: f, stop: cancel}
	r.wg.Go(func() {
		if err := pool.Run(ctx); err != nil && ctx.Err() == nil {
			p.Logger.Error("the upstream pool has ended", "zone", f.From, "error", err)
		}
	})
	if len(files) > 0 {
		r.wg.Go(func() { p.watch(ctx, r, f, files, read) })
	}
	return r
}

// resolvConfs lists the files that name upstreams of f.
func resolvConfs(f *config.Forward) []string {
	var files []string
	for _, to := range f.To {
		if to.ResolvConf != "" {
			files = append(files, to.ResolvConf)
		}
	}
	return files
}

// watch follows the resolv.conf files of f. A bad file does not change the upstreams.
func (p *pools) watch(ctx context.Context, r *runningPool, f *config.Forward, files []string, read watch.Sum) {
	const interval = time.Minute // for file systems that do not notify
	err := watch.Files(ctx, files, read, interval, func() {
		endpoints, err := p.endpoints(f)
		if err != nil {
			p.Logger.Error("the upstreams stay as they were: reading resolv.conf failed", "zone", f.From, "error", err)
			return
		}
		r.SetEndpoints(endpoints)
		p.Logger.Info("upstreams changed", "zone", f.From, "file", files, "upstreams", len(endpoints))
		p.Changed()
	})
	if err != nil && ctx.Err() == nil {
		p.Logger.Error("changes of resolv.conf are no longer detected", "file", files, "error", err)
	}
}

// retain ends the pools that are not in keep.
func (p *pools) retain(keep map[string]bool) {
	p.mu.Lock()
	var gone []*runningPool
	for k, r := range p.byKey {
		if !keep[k] {
			delete(p.byKey, k)
			gone = append(gone, r)
		}
	}
	p.divideLimits()
	p.mu.Unlock()
	for _, r := range gone {
		r.stop()
	}
	for _, r := range gone {
		r.wg.Wait()
	}
}

// all returns the pools, in the order of their keys.
func (p *pools) all() []*runningPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*runningPool
	for _, k := range slices.Sorted(maps.Keys(p.byKey)) {
		list = append(list, p.byKey[k])
	}
	return list
}

// learn sets the endpoints of the cluster's DNS, which the pools of forwards with
// kubernetes_endpoints use.
func (p *pools) learn(endpoints []netip.AddrPort) error {
	p.learned.Store(&endpoints)
	defer p.Changed() // without the lock
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range p.byKey {
		if !r.forward.KubernetesEndpoints {
			continue
		}
		all, err := p.endpoints(r.forward)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.SetEndpoints(all)
	}
	return errors.Join(errs...)
}

// learnedFor lists the endpoints of the cluster's DNS if f uses them, without our own
// addresses.
func (p *pools) learnedFor(f *config.Forward) []upstream.Endpoint {
	all := p.learned.Load()
	if !f.KubernetesEndpoints || all == nil {
		return nil
	}
	var found []upstream.Endpoint
	for _, addr := range *all {
		if !p.Own(addr) {
			found = append(found, upstream.Endpoint{Addr: addr})
		}
	}
	return found
}

// endpoints lists the upstreams of f in order. It reads the resolv.conf files.
func (p *pools) endpoints(f *config.Forward) ([]upstream.Endpoint, error) {
	if found := p.learnedFor(f); len(found) > 0 {
		return found, nil
	}
	var all []upstream.Endpoint
	for _, to := range f.To {
		if to.ResolvConf == "" {
			all = append(all, upstream.Endpoint{Addr: to.Addr, TLS: to.TLS, ServerName: to.ServerName})
			continue
		}
		found, err := p.fromResolvConf(to.ResolvConf)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// fromResolvConf reads the upstreams of one file. It ignores our own addresses: the
// host may use the node cache for its own lookups.
func (p *pools) fromResolvConf(path string) ([]upstream.Endpoint, error) {
	text, err := watch.ReadFile(path, watch.MaxResolvConf)
	if err != nil {
		return nil, err
	}
	nameservers, _, err := upstream.ParseResolvConf(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var found []upstream.Endpoint
	for _, ns := range nameservers {
		addr := netip.AddrPortFrom(ns, 53)
		if p.Own(addr) {
			p.Logger.Warn("nameserver ignored: it is this cache itself", "file", path, "upstream", addr)
			continue
		}
		found = append(found, upstream.Endpoint{Addr: addr})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: every nameserver is this cache itself", path)
	}
	return found, nil
}

func poolConfig(f *config.Forward) (upstream.PoolConfig, error) {
	c := upstream.PoolConfig{
		From: f.From, Except: f.Except, ForceTCP: f.ForceTCP, PreferUDP: f.PreferUDP,
		Policy: upstream.Policy(f.Policy), MaxFails: f.MaxFails, MaxConcurrent: f.MaxConcurrent,
		Expire: max(f.Expire, 1), // 0 keeps no connection; the pool would use its default
	}
	c.HealthCheck.Interval = f.HealthCheck.Interval
	c.HealthCheck.RecursionDesired = f.HealthCheck.RecursionDesired
	c.HealthCheck.Domain = f.HealthCheck.Domain
	var err error
	c.TLS, err = tlsConfig(f)
	return c, err
}

// tlsConfig reads the files of the tls option.
func tlsConfig(f *config.Forward) (*tls.Config, error) {
	c := &tls.Config{ServerName: f.TLSServerName, MinVersion: tls.VersionTLS12}
	if f.TLS == nil {
		return c, nil
	}
	if f.TLS.Cert != "" {
		pair, err := keyPair(f.TLS)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.TLS.CA != "" {
		pem, err := watch.ReadFile(f.TLS.CA, watch.MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("tls: " + f.TLS.CA + " contains no certificate")
		}
	}
	return c, nil
}

func keyPair(f *config.TLS) (tls.Certificate, error) {
	cert, err := watch.ReadFile(f.Cert, watch.MaxPEM)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := watch.ReadFile(f.Key, watch.MaxPEM)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
