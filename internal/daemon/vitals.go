package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// vitalsInterval is how often we ask ourselves where nobody else does. Several
// are lost before the supervisor takes us for hung.
const vitalsInterval = 500 * time.Millisecond

// vitals tells the supervisor that we answer. Its methods are safe for concurrent
// use.
type vitals struct {
	tell func(supervise.Report) error // nil: there is no supervisor
	pid  int                          // that stands for the program
	log  *slog.Logger

	mu      sync.Mutex
	told    bool             // between start and stop
	report  supervise.Report // of the last redirection
	inForce bool             // that one beats, and nobody else
	end     func()
}

func newVitals(b *supervise.Beats, log *slog.Logger) *vitals {
	v := &vitals{pid: b.PID(), log: log}
	if b != nil {
		v.tell = b.Beat
	}
	return v
}

// answered says that the target of a redirection answered just now, through its
// whole path. Between start and stop it is handed on; from now until withdrawn a
// target that does not answer counts as a hang.
func (v *vitals) answered(r supervise.Report) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report, v.inForce = r, true
	v.beat()
}

// withdrawn says that nobody new is redirected to us. Those who were may still
// wait.
func (v *vitals) withdrawn() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Silence, v.inForce = 0, false
}

// beat needs mu.
func (v *vitals) beat() {
	if !v.told {
		return
	}
	if err := v.tell(v.report); err != nil {
		v.log.Error("the supervisor is not told that we answer", "error", err)
	}
}

// start begins to tell. While no redirection is in force, ask decides whether we
// answer: nil is yes.
func (v *vitals) start(ctx context.Context, ask func(context.Context) error) {
	if v.tell == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = true
	v.beat()
	v.end = func() { cancel(); wg.Wait() }
	wg.Go(func() { v.keepAsking(ctx, ask) })
}

func (v *vitals) keepAsking(ctx context.Context, ask func(context.Context) error) {
	tick := time.NewTicker(vitalsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v.others() || ask(ctx) != nil {
			continue
		}
		v.mu.Lock()
		v.beat()
		v.mu.Unlock()
	}
}

// others reports whether a redirection beats.
func (v *vitals) others() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.inForce
}

// stop ends telling: we are about to close what we answer on.
func (v *vitals) stop() {
	v.mu.Lock()
	end := v.end
	v.told, v.end = false, nil
	v.mu.Unlock()
	if end != nil {
		end() // without mu, which its goroutine takes
	}
}

// askAny asks what we serve on until one answers. The step before ready has
// asked them all; from then on it is not our fault if the host takes one away.
func (d *daemon) askAny(ctx context.Context) error {
	var err error
	for _, a := range d.server.Addrs() {
		one, cancel := context.WithTimeout(ctx, vitalsInterval/2)
		err = server.Ask(one, reachable(a))
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// untilOrphaned is ctx, and ends when the supervisor has ended.
func untilOrphaned(ctx context.Context, b *supervise.Beats, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-b.Orphaned():
			log.Error("the supervisor has ended: stopping")
			cancel()
		}
	}()
	return ctx, cancel
}
