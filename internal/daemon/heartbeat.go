package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// beatInterval is how often we ask ourselves: each time wakes a few threads, which
// an idle node feels, and one loss must not make us count as hung.
func beatInterval(heartbeat time.Duration) time.Duration {
	if heartbeat == 0 {
		heartbeat = bpf.DefaultHeartbeatTimeout
	}
	return heartbeat / 3
}

// keepBeating asks the targets one after the other, all workers of each in turn,
// and beats with every answer, until ctx is done. Where one does not answer it
// stays with that one and does not beat.
func (r *redirector) keepBeating(ctx context.Context, b *bpf.Redirect, plan redirectPlan, toSupervisor supervise.Report) {
	const again = 5 * time.Second
	probes, err := openProbes(plan, r.workers)
	for ; err != nil; probes, err = openProbes(plan, r.workers) {
		r.metrics.errors.Inc()
		r.log.Error("no heartbeat: pods ask the fallbacks", "error", err)
		if !pause(ctx, again) {
			return
		}
	}
	defer closeProbes(probes)
	defer r.vitals.withdrawn()
	interval := beatInterval(plan.settings.Heartbeat)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	told := ""
	for next := 0; ; {
		if probes[next].Ask(interval) == nil {
			told = r.beatOn(b, told)
			r.vitals.answered(toSupervisor) // after the kernel: it counts from a moment later
			next = (next + 1) % len(probes)
		} else {
			r.metrics.missed.Inc()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beatOn tells an error that is not the one told before, and returns it.
func (r *redirector) beatOn(b *bpf.Redirect, told string) (now string) {
	err := b.Beat()
	if now = errorText(err); err != nil && now != told {
		r.metrics.errors.Inc()
		r.log.Error("the kernel is not told that we answer", "error", err)
	}
	return now
}

// supervised is what the supervisor has to know of the plan. The caller holds mu.
func (r *redirector) supervised() supervise.Report {
	report := supervise.Report{Cgroup: r.kubepods, Silence: cmp.Or(r.plan.settings.Heartbeat, bpf.DefaultHeartbeatTimeout)}
	for _, s := range r.plan.services {
		report.Targets = append(report.Targets, s.Target)
	}
	return report
}

// askTargets asks all workers of each target: what is redirected there would be lost
// otherwise. A predecessor that hangs and holds the port as well gets its share of
// the questions, and would get it of the look-ups.
func askTargets(ctx context.Context, plan redirectPlan, workers int) error {
	probes, err := openProbes(plan, workers)
	if err != nil {
		return err
	}
	defer closeProbes(probes)
	for i, p := range probes {
		if err := askWorkers(ctx, p); err != nil {
			return fmt.Errorf("no answer on the target %v: %w", plan.services[i].Target, err)
		}
	}
	return nil
}

func askWorkers(ctx context.Context, p *server.Prober) error {
	const patience, wait = 5 * time.Second, 250 * time.Millisecond
	late := time.Now().Add(patience)
	for left := p.Sockets(); left > 0; {
		err := p.Ask(wait)
		switch {
		case err == nil:
			left--
		case time.Now().After(late) || !pause(ctx, wait):
			return err
		}
	}
	return nil
}

func openProbes(plan redirectPlan, workers int) ([]*server.Prober, error) {
	var probes []*server.Prober
	for _, s := range plan.services {
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
