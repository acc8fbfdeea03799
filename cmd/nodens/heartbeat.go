package main

import (
	"context"
	"errors"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/server"
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
func (r *redirector) keepBeating(ctx context.Context, b *bpf.Redirect, plan redirectPlan) {
	probes, err := openProbes(plan, r.workers)
	if err != nil {
		r.log.Error("no heartbeat: pods ask the fallbacks", "error", err)
		return
	}
	defer closeProbes(probes)
	interval := beatInterval(plan.settings.Heartbeat)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for next := 0; ; {
		if probes[next].Ask(interval) == nil {
			b.Beat()
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
