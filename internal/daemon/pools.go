package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// pools owns the upstreams in use, by what the Corefile says of them: a reload
// that leaves a forward alone keeps its connections and its health.
type pools struct {
	ctx     context.Context
	log     *slog.Logger
	metrics *upstream.Metrics
	patient bool // see upstream.PoolConfig
	// own reports whether an address is one that we serve on ourselves.
	own func(netip.AddrPort) bool
	// changed is called after a resolv.conf or the API server has given other
	// upstreams.
	changed func()
	learnt  atomic.Pointer[[]netip.AddrPort] // the cluster DNS's endpoints; nil or empty: none is known

	mu    sync.Mutex
	byKey map[string]*runningPool
}

// runningPool is a Pool, the goroutines that keep it, and how to end them.
type runningPool struct {
	*upstream.Pool
	forward *config.Forward
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

func newPools(ctx context.Context, log *slog.Logger, m *upstream.Metrics) *pools {
	return &pools{ctx: ctx, log: log, metrics: m, byKey: make(map[string]*runningPool)}
}

// poolKey is equal for forwards that can share a pool. A renewed certificate
// makes another key.
func poolKey(f *config.Forward) string {
	if f.TLS == nil {
		return f.Key()
	}
	return fmt.Sprintf("%s %x", f.Key(), contentOf([]string{f.TLS.Cert, f.TLS.Key, f.TLS.CA}))
}

// open returns the pool of key, made from f unless it runs already.
func (p *pools) open(key string, f *config.Forward) (*upstream.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.byKey[key]; ok {
		return r.Pool, nil
	}
	files := resolvConfs(f)
	read := contentOf(files)
	endpoints, err := p.endpoints(f)
	if err != nil {
		return nil, err
	}
	c, err := poolConfig(f)
	if err != nil {
		return nil, err
	}
	c.Endpoints, c.Logger, c.Metrics, c.Now, c.Patient = endpoints, p.log, p.metrics, time.Now, p.patient
	pool, err := upstream.NewPool(c)
	if err != nil {
		return nil, err
	}
	p.byKey[key] = p.start(pool, f, files, read)
	return pool, nil
}

// start runs the pool and, where its upstreams come from files, their watch.
func (p *pools) start(pool *upstream.Pool, f *config.Forward, files []string, read content) *runningPool {
	ctx, cancel := context.WithCancel(p.ctx)
	r := &runningPool{Pool: pool, forward: f, stop: cancel}
	r.wg.Go(func() {
		if err := pool.Run(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("upstream pool ended", "from", f.From, "error", err)
		}
	})
	if len(files) > 0 {
		r.wg.Go(func() { p.watch(ctx, r, f, files, read) })
	}
	return r
}

// resolvConfs lists the files that f takes upstreams from.
func resolvConfs(f *config.Forward) []string {
	var files []string
	for _, to := range f.To {
		if to.ResolvConf != "" {
			files = append(files, to.ResolvConf)
		}
	}
	return files
}

// watch follows the resolv.conf files of f. One that cannot be used leaves the
// upstreams as they are.
func (p *pools) watch(ctx context.Context, r *runningPool, f *config.Forward, files []string, read content) {
	const look = time.Minute // for file systems that do not notify
	err := watchFiles(ctx, files, read, look, func() {
		endpoints, err := p.endpoints(f)
		if err != nil {
			p.log.Error("keep the upstreams as they were", "error", err)
			return
		}
		r.SetEndpoints(endpoints)
		p.log.Info("upstreams changed", "from", f.From, "files", files, "upstreams", len(endpoints))
		p.changed()
	})
	if err != nil && ctx.Err() == nil {
		p.log.Error("resolv.conf is no longer followed", "files", files, "error", err)
	}
}

// retain ends the pools whose keys are not in keep.
func (p *pools) retain(keep map[string]bool) {
	p.mu.Lock()
	var gone []*runningPool
	for k, r := range p.byKey {
		if !keep[k] {
			delete(p.byKey, k)
			gone = append(gone, r)
		}
	}
	p.mu.Unlock()
	for _, r := range gone {
		r.stop()
	}
	for _, r := range gone {
		r.wg.Wait()
	}
}

// learn gives the pools that want them the endpoints of the cluster's DNS.
func (p *pools) learn(endpoints []netip.AddrPort) error {
	p.learnt.Store(&endpoints)
	defer p.changed() // without the lock
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

// learntFor lists the endpoints that f is to ask, ourselves left out.
func (p *pools) learntFor(f *config.Forward) []upstream.Endpoint {
	all := p.learnt.Load()
	if !f.KubernetesEndpoints || all == nil {
		return nil
	}
	var found []upstream.Endpoint
	for _, addr := range *all {
		if p.own == nil || !p.own(addr) {
			found = append(found, upstream.Endpoint{Addr: addr})
		}
	}
	return found
}

// endpoints lists the upstreams of f in order, reading the resolv.conf files.
func (p *pools) endpoints(f *config.Forward) ([]upstream.Endpoint, error) {
	if found := p.learntFor(f); len(found) > 0 {
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

// fromResolvConf reads the upstreams of one file, leaving out ourselves: the
// host may well use the node cache for its own look-ups.
func (p *pools) fromResolvConf(path string) ([]upstream.Endpoint, error) {
	text, err := os.ReadFile(path)
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
		if p.own != nil && p.own(addr) {
			p.log.Warn("nameserver left out: it is this very cache", "file", path, "nameserver", addr)
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
		Expire: max(f.Expire, 1), // 0 keeps no connection, and not the pool's default
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
		pair, err := tls.LoadX509KeyPair(f.TLS.Cert, f.TLS.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.TLS.CA != "" {
		pem, err := os.ReadFile(f.TLS.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("tls: " + f.TLS.CA + " holds no certificate")
		}
	}
	return c, nil
}

func inlineHosts(entries []config.HostsEntry) []upstream.HostsEntry {
	out := make([]upstream.HostsEntry, len(entries))
	for i, e := range entries {
		out[i] = upstream.HostsEntry(e)
	}
	return out
}
