package redirect

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// session is the redirection of one plan, from Open to Close.
type session struct {
	cfg    Config
	plan   Plan
	status *status

	kubepods string         // directory
	sockets  *clientSockets // of kubepods
	kernel   *bpf.Redirect  // nil: not loaded
	// fallbacks and reach are nil if kernel is
	fallbacks *fallbacks
	reach     *targetProbe
	counters  prometheus.Collector

	background *tasks      // from open to close
	steering   *tasks      // from start to withdraw; nil: not started
	replaced   atomic.Bool // another process redirects; set by the watcher
	clearing   bool        // redirection is off, and a predecessor's is active
	broken     bool        // only a reload can help
}

// load loads the programs and registers their counters. first: this process has
// loaded none before.
func (s *session) load(endpoints learned, first bool) error {
	s.kubepods = s.plan.Kubepods
	if s.kubepods == "" {
		var err error
		if s.kubepods, err = bpf.FindKubepods("/proc/self/mountinfo"); err != nil {
			return err
		}
	}
	s.sockets = &clientSockets{kubepods: s.kubepods, pinDir: s.plan.PinDir, services: s.plan.Services, log: s.cfg.Logger}
	if first {
		s.sockets.closeOrphans()
		if err := allowSteering(s.plan.PinDir, s.cfg.Restarted); err != nil {
			return err
		}
	}
	services := s.plan.Services
	pinned, _ := bpf.Inspect(s.plan.PinDir) // OpenRedirect reports the error
	if s.plan.LearnsEndpoints && !endpoints.known {
		services = s.plan.withPinned(pinned)
	}
	s.fallbacks = newFallbacks(s, services, pinned)
	var err error
	s.kernel, err = bpf.OpenRedirect(bpf.RedirectConfig{
		Cgroup: s.kubepods, PinDir: s.plan.PinDir, Services: withoutLastResort(s.kubepods, s.fallbacks.in(services)),
		HeartbeatTimeout: s.plan.Heartbeat, Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	s.fallbacks.adopt(s.kernel)
	s.reach = &targetProbe{kubepods: s.kubepods, services: s.plan.Services, fallbacks: s.fallbacks.of, blocked: s.cfg.InputBlocked}
	s.counters = s.kernel.Collector()
	if err := s.cfg.Registerer.Register(s.counters); err != nil {
		return err
	}
	return s.setFallbacks(endpoints)
}

// allowSteering ends an operator's teardown, which holds until nodens starts as a whole.
func allowSteering(pinDir string, restarted bool) error {
	if restarted {
		return nil
	}
	return bpf.AllowSteering(pinDir)
}

// withoutLastResort returns services without a last resort if they are behind a socket
// load balancer, or that is not known.
func withoutLastResort(kubepods string, services []bpf.Service) []bpf.Service {
	if behind, err := bpf.HasSocketLB(kubepods); err != nil || behind {
		for i := range services {
			services[i].LastResort = netip.AddrPort{}
		}
	}
	return services
}

// updateLastResort follows a socket load balancer that appears or disappears.
func (s *session) updateLastResort() error {
	var errs []error
	for _, svc := range withoutLastResort(s.kubepods, slices.Clone(s.plan.Services)) {
		errs = append(errs, s.kernel.SetLastResort(svc.VIP, svc.LastResort))
	}
	return errors.Join(errs...)
}

// reset gives up the plan. A reload, requested after a delay, starts from scratch.
func (s *session) reset(err error) {
	s.status.fail(err)
	s.broken = true
	wait := s.status.nextRetry()
	s.background.run(func(ctx context.Context) {
		if pause(ctx, wait) {
			s.cfg.Reload()
		}
	})
}

// reportSkipped logs the services that are left out, and requests reloads, with
// growing delays: on a node that is still starting, a later plan may have them.
func (s *session) reportSkipped() {
	for _, reason := range s.plan.Skipped {
		s.status.error("a service is not redirected", "error", reason)
	}
	if len(s.plan.Skipped) == 0 {
		return
	}
	s.background.run(func(ctx context.Context) {
		for wait := firstRetry; pause(ctx, wait); wait = min(2*wait, longestRetry) {
			s.cfg.Reload()
		}
	})
}

// clear removes what a predecessor of any version pinned, once that process has ended or
// is frozen. Otherwise its programs would send pods to the fallbacks for ever.
func (s *session) clear(ctx context.Context) {
	const again = 30 * time.Second
	for {
		pinned, err := bpf.Inspect(s.plan.PinDir)
		if err == nil && !slices.ContainsFunc(pinned, bpf.Pinned.Lives) {
			if err = bpf.Teardown(s.plan.PinDir); err == nil {
				s.cfg.Pinned(false)
				return
			}
		}
		if err != nil {
			s.cfg.Logger.Error("redirection is off, but a predecessor's is still active; remove it with nodens teardown", "error", err)
		}
		if !pause(ctx, again) {
			return
		}
	}
}

// start redirects, or waits until mode auto finds that redirection is needed. It
// takes over a predecessor's redirection at once.
func (s *session) start(ctx context.Context) {
	if s.kernel == nil || s.broken || s.steering != nil {
		return
	}
	s.steering = newTasks(ctx)
	if s.plan.Mode == config.RedirectAuto && !isAdopted(s.plan.PinDir) {
		check := reachability{
			probe:  podProbe{kubepods: s.kubepods, identity: s.cfg.Identity, vips: s.plan.vips()},
			status: s.status,
		}
		s.steering.run(func(ctx context.Context) {
			if check.waitUnreachable(ctx) {
				s.cfg.Logger.Info("pods do not reach the local addresses")
				s.maintain(ctx, s.engage(ctx))
			}
		})
		return
	}
	err := s.engage(s.steering.ctx)
	s.steering.run(func(ctx context.Context) { s.maintain(ctx, err) })
}

// engage checks that the targets answer, attaches the programs and declares this
// process alive.
func (s *session) engage(ctx context.Context) error {
	err := s.attach(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.status.fail(err)
			if errors.Is(err, bpf.ErrTornDown) {
				s.status.set(stateTornDown)
			}
		}
		return err
	}
	s.cfg.Pinned(true)
	s.status.engaged()
	s.steering.run(s.fallbacks.run)
	s.steering.run(s.followReach)
	beats := &heartbeat{
		services: s.plan.Services, workers: s.cfg.Workers, interval: heartbeatInterval(s.plan.Heartbeat),
		kernel: s.kernel, status: s.status, report: s.plan.report(s.kubepods),
		pace: pace{queries: s.cfg.Queries}, answered: s.cfg.Answered, withdrawn: s.cfg.Withdrawn, takePorts: s.takePorts, replaced: &s.replaced,
	}
	s.steering.run(beats.run)
	for _, svc := range s.kernel.Services() {
		s.cfg.Logger.Info("sockets are redirected", "service", svc.VIP, "target", svc.Target, "fallbacks", svc.Fallbacks)
	}
	return nil
}

func (s *session) attach(ctx context.Context) error {
	replaced := false
	err := checkTargets(ctx, s.plan.Services, s.cfg.Workers, func() { replaced = replaced || s.sockets.replaceFrozen(s.takePorts) })
	if err != nil {
		return err
	}
	if err := newOptOut(s).sync(); err != nil {
		return err
	}
	if err := s.reach.check(ctx); errors.Is(err, errUnreachable) {
		return err
	}
	return s.kernel.Engage()
}

func newOptOut(s *session) *optOut {
	return &optOut{kernel: s.kernel, status: s.status, kubepods: s.kubepods, podLogs: s.cfg.PodLogs, names: s.plan.OptOut}
}

// report is what the supervisor needs to know about the plan.
func (p *Plan) report(kubepods string) supervise.Report {
	report := supervise.Report{Cgroup: kubepods, Timeout: cmp.Or(p.Heartbeat, bpf.DefaultHeartbeatTimeout)}
	for _, svc := range p.Services {
		report.Targets = append(report.Targets, svc.Target)
	}
	return report
}

// maintain retries if err, from engage, is not nil. Then it follows pods that opt
// out, and watches what redirects.
func (s *session) maintain(ctx context.Context, err error) {
	for err != nil {
		again := 30 * time.Second
		if errors.Is(err, errUnreachable) {
			again = lostInterval
		}
		if !pause(ctx, again) {
			return
		}
		err = s.engage(ctx)
	}
	s.steering.run(newOptOut(s).follow)
	newWatcher(s).run(ctx)
}

// setFallbacks gives each service its fallbacks among the learned endpoints.
func (s *session) setFallbacks(endpoints learned) error {
	if s.kernel == nil || s.plan.FixedFallbacks || !endpoints.known {
		return nil
	}
	var errs []error
	for _, svc := range s.plan.Services {
		some := fallbacksFor(svc.VIP, s.plan.vips(), endpoints.addrs)
		if len(some) == 0 {
			some = svc.Fallbacks
		}
		if len(some) > 0 {
			errs = append(errs, s.fallbacks.set(svc.VIP, some))
		}
	}
	return errors.Join(errs...)
}

// forget removes the fallbacks of the cluster IP, unless the user set them.
func (s *session) forget() error {
	if s.kernel == nil || s.plan.FixedFallbacks {
		return nil
	}
	var errs []error
	for _, svc := range s.plan.Services {
		if svc.VIP.Addr() == s.plan.ClusterIP {
			errs = append(errs, s.fallbacks.set(svc.VIP, nil))
		}
	}
	return errors.Join(errs...)
}

func (s *session) withdraw() error {
	if s.steering != nil {
		s.steering.stop()
		s.steering = nil
		s.status.fallback.Reset() // they are no longer checked
	}
	if s.kernel == nil {
		return nil
	}
	s.status.set(stateWithdrawn)
	return s.kernel.Withdraw()
}

func (s *session) close() error {
	err := s.withdraw()
	s.background.stop()
	if s.kernel == nil {
		return err
	}
	s.cfg.Registerer.Unregister(s.counters)
	return errors.Join(err, s.kernel.Close())
}
