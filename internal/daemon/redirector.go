package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// redirector keeps the redirection of one plan at a time. What it cannot do it
// tells, and tries again: the daemon serves by address meanwhile. Its methods
// are safe for concurrent use.
type redirector struct {
	log      *slog.Logger
	registry prometheus.Registerer
	metrics  *redirectMetrics
	gate     *server.Gate
	vitals   *vitals
	workers  int
	identity string // of our answers to id.server
	podLogs  string // directory
	retry    func() // asks for a reload

	mu       sync.Mutex
	plan     redirectPlan
	kubepods string        // directory
	bpf      *bpf.Redirect // nil: not open
	counts   prometheus.Collector
	stop     func()         // ends what start has begun; nil: nothing
	work     sync.WaitGroup // what start has begun
	end      func()         // ends what open has begun; nil: nothing
	learnt   []netip.AddrPort
	knows    bool   // learnt was told
	told     string // the last failure
	clearing bool   // off, and a predecessor has left something
	reopened bool   // this is not the plan of the start
	broken   bool   // nothing but a reload can help
	failures int    // in a row
}

func newRedirector(log *slog.Logger, reg prometheus.Registerer, workers int, identity string) *redirector {
	gate := server.NewGate()
	return &redirector{
		log: log, registry: reg, gate: gate, workers: workers, identity: identity,
		podLogs: defaultPodLogs, vitals: &vitals{}, metrics: newRedirectMetrics(reg, gate),
	}
}

// open loads the programs of a plan, attached as yet to nothing. It is called
// before listening, and never after a plan that was not closed.
func (r *redirector) open(ctx context.Context, plan redirectPlan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan = plan
	switch {
	case plan.settings.Mode == config.RedirectOff:
		r.told = ""
		r.metrics.set(stateOff)
		ours := r.counts != nil // this process redirected
		if r.clearing = (ours || plan.clears) && isAdopted(plan.pinDir); r.clearing {
			r.background(ctx, r.clear)
		}
		return
	case plan.err != nil:
		r.breakDown(ctx, plan.err)
		return
	}
	if err := r.load(); err != nil {
		if r.reopened && errors.Is(err, bpf.ErrPermission) {
			err = fmt.Errorf("%w; if nodens had these, it gave them up at its start, when there was no redirection: start it again", err)
		}
		r.breakDown(ctx, err)
		return
	}
	r.broken = false
	r.lack(ctx, plan.without)
	named := plan.settings.Uplinks
	known := r.shutGate(nil, named)
	r.background(ctx, func(ctx context.Context) { r.followUplinks(ctx, known, named) })
	r.metrics.set(stateWaiting)
}

// reopen is open for a reload.
func (r *redirector) reopen(ctx context.Context, plan redirectPlan) {
	r.mu.Lock()
	r.reopened = true
	r.mu.Unlock()
	r.open(ctx, plan)
}

// clear removes what a predecessor has left, once that is not alive: its
// programs would send pods to the fallbacks for ever.
func (r *redirector) clear(ctx context.Context) {
	const again = 30 * time.Second
	dir := r.current().pinDir
	for {
		pinned, err := bpf.Inspect(dir)
		if err == nil && !slices.ContainsFunc(pinned, func(p bpf.Pinned) bool { return p.Alive }) {
			err = bpf.Teardown(dir)
			if err == nil {
				return
			}
		}
		if err != nil {
			r.log.Error("redirection is off, but a predecessor's is still in force; remove it with nodens teardown", "error", err)
		}
		if !pause(ctx, again) {
			return
		}
	}
}

// needsBPF reports whether there is something to redirect or to remove.
func (r *redirector) needsBPF() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clearing || r.plan.settings.Mode != config.RedirectOff
}

// background runs f until the plan is closed. The caller holds mu.
func (r *redirector) background(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	before := r.end
	r.end = func() {
		cancel()
		<-done
		if before != nil {
			before()
		}
	}
}

// load also makes the counters visible. The caller holds mu.
func (r *redirector) load() error {
	r.kubepods = r.plan.settings.Kubepods
	if r.kubepods == "" {
		var err error
		if r.kubepods, err = bpf.FindKubepods("/proc/self/mountinfo"); err != nil {
			return err
		}
	}
	if r.counts == nil { // of this process there was none before
		r.freeOrphans()
	}
	services := r.plan.services
	if r.plan.learns && !r.knows {
		pinned, _ := bpf.Inspect(r.plan.pinDir) // OpenRedirect tells
		services = r.plan.withPinned(pinned)
	}
	b, err := bpf.OpenRedirect(bpf.RedirectConfig{
		Cgroup: r.kubepods, PinDir: r.plan.pinDir, Services: services,
		HeartbeatTimeout: r.plan.settings.Heartbeat, Logger: r.log,
	})
	if err != nil {
		return err
	}
	r.bpf, r.counts = b, b.Collector()
	if err := r.registry.Register(r.counts); err != nil {
		return err
	}
	return r.putLearnt()
}

// fail tells why there is no redirection, unless it has told just that. The
// caller holds mu.
func (r *redirector) fail(err error) {
	if now := err.Error(); now != r.told {
		r.told = now
		r.metrics.errors.Inc()
		r.log.Error("sockets are not redirected; nodens serves by address", "error", err)
	}
	r.metrics.set(stateFailed)
}

// succeed says that sockets are redirected: a failure from now on is another one. The
// caller holds mu.
func (r *redirector) succeed() {
	r.told = ""
	r.metrics.set(stateOn)
}

// lack tells which services are left out, and asks for reloads, which may find what
// they lack: the node may only be starting. The caller holds mu.
func (r *redirector) lack(ctx context.Context, services []string) {
	for _, why := range services {
		r.metrics.errors.Inc()
		r.log.Error("a service is not redirected", "error", why)
	}
	if len(services) == 0 {
		return
	}
	r.background(ctx, func(ctx context.Context) {
		for wait := firstRetry; pause(ctx, wait); wait = min(2*wait, longestRetry) {
			r.retry()
		}
	})
}

// How long after a failure a reload is asked for.
const firstRetry, longestRetry = 30 * time.Second, 10 * time.Minute

// breakDown is fail for what only another plan, or the same from the beginning,
// can cure: it asks for a reload by and by. The caller holds mu.
func (r *redirector) breakDown(ctx context.Context, err error) {
	r.fail(err)
	r.broken = true
	wait := min(firstRetry<<r.failures, longestRetry)
	if r.failures < 10 {
		r.failures++
	}
	r.background(ctx, func(ctx context.Context) {
		if pause(ctx, wait) {
			r.retry()
		}
	})
}

// giveUp is for a plan whose targets cannot be served.
func (r *redirector) giveUp(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan.err = err
	if !r.broken {
		r.breakDown(ctx, err)
	}
}

// keeps reports whether plan is the one that is kept, and not broken.
func (r *redirector) keeps(plan redirectPlan) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plan.equal(plan) && !r.broken
}

// start redirects, now that the targets are served, or begins to find out
// whether it is needed. What a predecessor redirects is taken over at once.
func (r *redirector) start(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bpf == nil || r.broken || r.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = func() { cancel(); r.work.Wait() }
	if r.plan.settings.Mode == config.RedirectAuto && !isAdopted(r.plan.pinDir) {
		probe := podProbe{kubepods: r.kubepods, identity: r.identity, vips: r.plan.vips()}
		r.work.Go(func() {
			if r.decide(ctx, probe) {
				r.log.Info("pods do not reach the local addresses")
				r.keepEngaged(ctx, r.engageNow(ctx))
			}
		})
		return
	}
	err := r.engage(ctx)
	if err != nil {
		r.fail(err)
	}
	r.work.Go(func() { r.keepEngaged(ctx, err) })
}

// engageNow is engage for who does not hold mu.
func (r *redirector) engageNow(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	err := r.engage(ctx)
	if err != nil {
		r.fail(err)
	}
	return err
}

// engage asks the targets, attaches and says that we are alive. The caller holds
// mu.
func (r *redirector) engage(ctx context.Context) error {
	if err := askTargets(ctx, r.plan, r.workers); err != nil {
		return err
	}
	if err := r.syncOptOut(); err != nil {
		return err
	}
	if err := r.bpf.Attach(); err != nil {
		return err
	}
	if err := r.bpf.Alive(); err != nil {
		return err
	}
	r.succeed()
	b, plan, toSupervisor := r.bpf, r.plan, r.supervised()
	r.work.Go(func() { r.keepBeating(ctx, b, plan, toSupervisor) })
	for _, s := range r.plan.services {
		r.log.Info("sockets are redirected", "service", s.VIP, "target", s.Target, "fallbacks", s.Fallbacks)
	}
	return nil
}

// keepEngaged tries again where engaging failed. Then it follows pods, repairs,
// and removes what other versions have left, when look-ups that they had
// redirected have ended.
func (r *redirector) keepEngaged(ctx context.Context, failed error) {
	const again, lookup = 30 * time.Second, 10 * time.Second
	for failed != nil {
		if !pause(ctx, again) {
			return
		}
		failed = r.engageNow(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	r.work.Go(func() { r.followOptOut(ctx) })
	if !pause(ctx, lookup) {
		return
	}
	r.locked(func(b *bpf.Redirect) {
		if err := b.RemoveOtherVersions(); err != nil {
			r.log.Error("what another version has pinned stays", "error", err)
		}
	})
	for pause(ctx, again) {
		r.locked(r.repair)
	}
}

// repair needs mu.
func (r *redirector) repair(b *bpf.Redirect) {
	repaired, err := b.Repair()
	if err != nil {
		r.fail(err)
		return
	}
	r.succeed()
	if repaired {
		r.log.Warn("attached anew: the cgroup of pods had been removed")
	}
}

// locked calls f with the open redirection, if there is one.
func (r *redirector) locked(f func(*bpf.Redirect)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bpf != nil {
		f(r.bpf)
	}
}

// pause returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// withdraw sends new look-ups to the fallbacks. What was sent to us is still
// answered.
func (r *redirector) withdraw() error {
	r.mu.Lock()
	stop := r.stop
	r.stop = nil
	r.mu.Unlock()
	if stop != nil {
		stop() // without mu: its goroutines take it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bpf == nil {
		return nil
	}
	r.metrics.set(stateWithdrawn)
	return r.bpf.Withdraw()
}

// close ends the plan. What is pinned stays: pods ask the fallbacks.
func (r *redirector) close() error {
	err := r.withdraw()
	r.mu.Lock()
	end := r.end
	r.end = nil
	r.mu.Unlock()
	if end != nil {
		end() // without mu, as above
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bpf == nil {
		return err
	}
	r.registry.Unregister(r.counts)
	err = errors.Join(err, r.bpf.Close())
	r.bpf = nil
	return err
}

// leave is for the end of the daemon: it forgets the endpoints that were learnt for
// the ClusterIP, which the service proxy knows better once they have changed.
func (r *redirector) leave() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bpf == nil || r.plan.given {
		return nil
	}
	var errs []error
	for _, s := range r.plan.services {
		if s.VIP.Addr() == r.plan.cluster {
			errs = append(errs, r.bpf.SetFallbacks(s.VIP, nil))
		}
	}
	return errors.Join(errs...)
}

// current is the plan that is kept.
func (r *redirector) current() redirectPlan {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plan
}

// learn replaces the fallbacks that were learnt from the cluster: endpoints that
// answer while we do not, of both address families. They count unless the user
// has given others; none means the upstreams of the cluster domain.
func (r *redirector) learn(endpoints []netip.AddrPort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learnt, r.knows = endpoints, true
	return r.putLearnt()
}

// putLearnt needs mu.
func (r *redirector) putLearnt() error {
	if r.bpf == nil || r.plan.given || !r.knows {
		return nil
	}
	var errs []error
	for _, s := range r.plan.services {
		some := fallbacksFor(s.VIP, r.plan.vips(), r.learnt)
		if len(some) == 0 {
			some = s.Fallbacks
		}
		if len(some) > 0 {
			errs = append(errs, r.bpf.SetFallbacks(s.VIP, some))
		}
	}
	return errors.Join(errs...)
}
