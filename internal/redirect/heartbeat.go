package redirect

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/supervise"
	"github.com/nodens-dns/nodens/internal/tick"
)

// heartbeatInterval is the time between two queries to the targets. Each query
// wakes a few threads, which costs an idle node, and one lost query must not make
// the daemon count as hung.
func heartbeatInterval(timeout time.Duration) time.Duration {
	if timeout == 0 {
		timeout = bpf.DefaultHeartbeatTimeout
	}
	return timeout / 3
}

// If others send no query for quiet, the next heartbeat comes only after idleAhead,
// because every heartbeat wakes an idle node. The kernel then notices a hang that much
// later.
const quiet, idleAhead = 5 * time.Second, time.Second

// pace decides when the next heartbeat comes.
type pace struct {
	queries func() uint64 // number of queries of others; nil: unknown
	seen    uint64
	last    time.Time // when seen changed
}

// ahead returns the time until the next heartbeat, 0 for the usual interval.
func (p *pace) ahead(now time.Time) time.Duration {
	if p.queries == nil {
		return 0
	}
	if n := p.queries(); n != p.seen || p.last.IsZero() {
		p.seen, p.last = n, now
	}
	if now.Sub(p.last) < quiet {
		return 0
	}
	return idleAhead
}

// heartbeat proves to the kernel and to the supervisor that the targets answer.
type heartbeat struct {
	services  []bpf.Service
	workers   int // sockets of each target
	interval  time.Duration
	kernel    *bpf.Redirect
	status    *status
	report    supervise.Report
	answered  func(supervise.Report)
	withdrawn func()
	pace      pace
	takePorts func()       // after this process took over from a frozen one
	replaced  *atomic.Bool // another process, perhaps of another version, redirects
}

// run queries the targets in turn until ctx is done, and sends a heartbeat for
// each answer. If a target does not answer, run repeats that query and sends no
// heartbeat.
func (h *heartbeat) run(ctx context.Context) {
	probes := h.openProbes(ctx)
	if probes == nil {
		return
	}
	defer closeProbes(probes)
	defer h.withdrawn()
	timer := tick.New()
	defer timer.Stop()
	reason := ""
	for next := 0; ; {
		ahead := h.pace.ahead(time.Now())
		timer.Reset(h.interval) // counts while the query is answered
		if probes[next].Ask(h.interval) == nil {
			sent, err := h.kernel.Beat(ahead)
			if sent == bpf.BeatFromFrozen {
				h.takePorts()
			}
			reason = h.status.errorOnce(reason, "heartbeat does not reach the kernel", err)
			report := h.report
			report.Timeout += ahead
			if sent == bpf.BeatNone || h.replaced.Load() {
				report.Timeout = 0 // clients wait for another process
			}
			h.answered(report) // after the kernel: the supervisor's time counts from here
			if ahead > 0 {
				timer.Reset(tick.Until(ahead)) // together with other checks
			}
			next = (next + 1) % len(probes)
		} else {
			h.status.missed.Inc()
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// openProbes opens the probes of the targets. It returns nil if ctx is done first.
func (h *heartbeat) openProbes(ctx context.Context) []*server.Prober {
	const again = 5 * time.Second
	for {
		probes, err := openProbes(h.services, h.workers)
		if err == nil {
			return probes
		}
		h.status.error("no heartbeat: pods use the fallbacks", "error", err)
		if !pause(ctx, again) {
			return nil
		}
	}
}

// checkTargets queries all workers of each target, since a worker that does not
// answer would lose lookups. A hung predecessor that still holds the port gets a
// share of the queries here, as it would get a share of the lookups. silent is called
// at the start and after each query without an answer.
func checkTargets(ctx context.Context, services []bpf.Service, workers int, silent func()) error {
	const timeout, wait = 5 * time.Second, 250 * time.Millisecond
	probes, err := openProbes(services, workers)
	if err != nil {
		return err
	}
	defer closeProbes(probes)
	late := time.Now().Add(timeout)
	silent()
	for i, p := range probes {
		for left := p.Sockets(); left > 0; {
			err := p.Ask(wait)
			if err == nil {
				left--
				continue
			}
			if time.Now().After(late) || !pause(ctx, wait) {
				return fmt.Errorf("no answer on the target %v: %w", services[i].Target, err)
			}
			silent()
		}
	}
	return nil
}

func openProbes(services []bpf.Service, workers int) ([]*server.Prober, error) {
	var probes []*server.Prober
	for _, s := range services {
		p, err := server.NewProber(s.Target, workers)
		if err != nil {
			return nil, errors.Join(err, closeProbes(probes))
		}
		probes = append(probes, p)
	}
	return probes, nil
}

func closeProbes(probes []*server.Prober) error {
	var errs []error
	for _, p := range probes {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
