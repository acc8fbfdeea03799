package daemon

import (
	"bytes"
	"context"
	"io"

	"github.com/prometheus/client_golang/prometheus"
)

// lineWriter writes lines in the background, so that whoever logs a query
// never waits for the reader of the log. What does not fit is dropped and
// counted.
type lineWriter struct {
	w       io.Writer
	lines   chan []byte
	done    chan struct{}
	dropped prometheus.Counter
}

// pendingLines is how many lines may wait to be written.
const pendingLines = 8192

func newLineWriter(w io.Writer) *lineWriter {
	return &lineWriter{
		w: w, lines: make(chan []byte, pendingLines),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_query_log_dropped_total", Help: "Lines of the query log that were dropped because nobody read them in time.",
		}),
	}
}

// Write takes one line. It never fails.
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
			_, _ = l.w.Write(line) // there is nowhere to tell it
		}
	}()
	return nil
}

// stop writes what is pending. A reader that does not read is not waited for
// longer than the drain may take.
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
