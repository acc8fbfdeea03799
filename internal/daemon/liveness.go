package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// livenessInterval is the time between two probes while sockets are not redirected.
// The supervisor waits for several of them before it treats the daemon as hung.
const livenessInterval = time.Second

// liveness reports to the supervisor that the daemon answers. Its methods are safe
// for concurrent use.
type liveness struct {
	send  func(supervise.Report) error // nil: there is no supervisor
	probe func(context.Context) error  // returns nil if the daemon answers
	log   *slog.Logger

	mu         sync.Mutex // guards what follows
	running    bool       // between up and down
	report     supervise.Report
	redirected bool // sockets are redirected: only answers of targets count
	stop       func()
	ended      chan struct{} // signals that sockets are no longer redirected
}

func newLiveness(b *supervise.Heartbeat, probe func(context.Context) error, log *slog.Logger) *liveness {
	l := &liveness{probe: probe, log: log, stop: func() {}, ended: make(chan struct{}, 1)}
	if b != nil {
		l.send = b.Send
	}
	return l
}

// answered reports that the target of a redirection has just answered. Until
// withdrawn is called, liveness reports only answers of targets to the supervisor.
func (l *liveness) answered(r supervise.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report, l.redirected = r, true
	l.sendLocked()
}

// withdrawn reports that the kernel redirects no new lookup to this process. Clients
// of earlier lookups may still wait for an answer.
func (l *liveness) withdrawn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Timeout, l.redirected = 0, false
	select {
	case l.ended <- struct{}{}:
	default:
	}
}

// sendLocked needs mu.
func (l *liveness) sendLocked() {
	if !l.running {
		return
	}
	if err := l.send(l.report); err != nil {
		l.log.Error("reporting to the supervisor failed", "error", err)
	}
}

// up begins to report.
func (l *liveness) up(ctx context.Context) {
	if l.send == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = true
	l.sendLocked()
	l.stop = background(ctx, l.run)
}

// run probes while sockets are not redirected, until ctx is done.
func (l *liveness) run(ctx context.Context) {
	timer := time.NewTimer(livenessInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.ended:
		}
		if l.isRedirected() {
			continue // the answers of targets are enough, and an idle process sleeps
		}
		timer.Reset(livenessInterval)
		if l.probe(ctx) != nil {
			continue
		}
		l.mu.Lock()
		l.sendLocked()
		l.mu.Unlock()
	}
}

func (l *liveness) isRedirected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.redirected
}

// down ends the reports. Call it before the sockets that answer close.
func (l *liveness) down(context.Context) error {
	l.mu.Lock()
	stop := l.stop
	l.running = false
	l.mu.Unlock()
	stop() // without mu, which run takes
	return nil
}

// probeAny sends a query to our addresses until one answers. One answer is enough:
// the start has checked all addresses, and a daemon does not hang because another
// program removed one later.
func probeAny(s *server.Server) func(context.Context) error {
	return func(ctx context.Context) error {
		var err error
		for _, a := range s.Addrs() {
			one, cancel := context.WithTimeout(ctx, livenessInterval/2)
			err = server.Ask(one, reachable(a))
			cancel()
			if err == nil {
				return nil
			}
		}
		return err
	}
}

// untilOrphaned returns ctx, which also ends when the supervisor has ended.
func untilOrphaned(ctx context.Context, b *supervise.Heartbeat, log *slog.Logger) (context.Context, context.CancelFunc) {
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
