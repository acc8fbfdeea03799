package supervise

import (
	"log/slog"
	"time"
)

const (
	// stallBurst is the number of stalls that are logged one by one: more than a drill
	// has.
	stallBurst = 20
	// stallInterval is the time between two log lines after these, and the time
	// without a stall after which the next ones are logged one by one again.
	stallInterval = time.Minute
)

// stallLog logs when a worker stops sending heartbeats, and when it sends them again. A
// worker without enough CPU may stall every few seconds for as long as the node runs.
type stallLog struct {
	pid      int // of the worker; a new one starts from the beginning
	burst    int
	last     time.Time // stall
	logged   time.Time
	unlogged int // since logged
	silent   bool
}

// begin is called when the stall of w disconnects its clients.
func (l *stallLog) begin(log *slog.Logger, w *worker, now time.Time) {
	if w.pid != l.pid || now.Sub(l.last) >= stallInterval {
		*l = stallLog{pid: w.pid, unlogged: l.unlogged}
	}
	l.last = now
	l.burst++
	if l.silent = l.burst > stallBurst && now.Sub(l.logged) < stallInterval; l.silent {
		l.unlogged++
		return
	}
	args := []any{"pid", w.pid, "elapsed", w.watchdog.elapsed}
	if l.unlogged > 0 {
		args = append(args, "unlogged", l.unlogged)
	}
	log.Warn("no heartbeat from the worker: disconnecting its clients", args...)
	if l.burst == stallBurst {
		log.Warn("the worker stalls often, from now on one line a minute: does it get enough CPU?", "pid", w.pid)
	}
	l.logged, l.unlogged = now, 0
}

// over is called at the first heartbeat after begin.
func (l *stallLog) over(log *slog.Logger, w *worker) {
	if !l.silent {
		log.Info("the worker sends heartbeats again", "pid", w.pid)
	}
}
