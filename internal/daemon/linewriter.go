package daemon

import (
	"bytes"
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"
)

// lineWriter writes lines in the background, so that logging never waits for the
// reader of the log. It drops and counts lines if too many are pending.
type lineWriter struct {
	w       io.Writer
	lines   chan []byte
	done    chan struct{}
	dropped prometheus.Counter
}

// Maximum number of lines that wait to be written. A line of the log may be long.
const (
	pendingLog     = 1024
	pendingQueries = 8192
)

// newLog is the lineWriter of the log.
func newLog(w io.Writer, reg prometheus.Registerer) *lineWriter {
	return newLineWriter(w, reg, pendingLog, "nodens_log_dropped_total", "Lines of the log that were dropped because the reader was too slow.")
}

// newQueryLog is the lineWriter of the query log.
func newQueryLog(w io.Writer, reg prometheus.Registerer) *lineWriter {
	return newLineWriter(w, reg, pendingQueries, "nodens_query_log_dropped_total", "Lines of the query log that were dropped because the reader was too slow.")
}

func newLineWriter(w io.Writer, reg prometheus.Registerer, pending int, metric, help string) *lineWriter {
	l := &lineWriter{
		w: w, lines: make(chan []byte, pending),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: metric, Help: help}),
	}
	reg.MustRegister(l.dropped)
	return l
}

// Write queues one line. It never fails.
func (l *lineWriter) Write(line []byte) (int, error) {
	select {
	case l.lines <- bytes.Clone(line):
	default:
		l.dropped.Inc()
	}
	return len(line), nil
}

func (l *lineWriter) start(context.Context) error {
	l.done = make(chan struct{})
	go func() {
		defer close(l.done)
		for line := range l.lines {
			if line == nil {
				return
			}
			_, _ = l.w.Write(line) // a failure cannot be logged: this is the log
		}
	}()
	return nil
}

// stop writes the pending lines. It gives up after drainTimeout/8 if the reader of
// the log does not read.
func (l *lineWriter) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout/8)
	defer cancel()
	select {
	case l.lines <- nil:
	case <-ctx.Done():
		return nil
	}
	select {
	case <-l.done:
	case <-ctx.Done():
	}
	return nil
}
