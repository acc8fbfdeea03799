package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/internal/top"
)

// uncounted is nodens without statistics of queries.
const uncounted = "nodens without statistics"

// viewed is nodens with an open nodens top.
const viewed = "nodens with nodens top"

var (
	// statisticsRates are the rates of hits that are compared, in queries per second. 0
	// is as fast as the window allows. Below about 15,000/s, every hit is a sample.
	statisticsRates = [...]int{0, 5000, 15_000}
	viewedRate      = 200_000
)

// statisticsFigures are the results of nodens with and without statistics, and with and
// without a viewer.
type statisticsFigures struct {
	hits [len(statisticsRates)]phase
	view phase
}

// measureStatistics compares two new daemons, of which one counts no hit in the statistics
// of queries, and then the other one with and without nodens top.
func (b *bench) measureStatistics(ctx context.Context, e *env) (f *statisticsFigures, err error) {
	own := *e
	own.dir, own.grown = filepath.Join(e.dir, "statistics"), e.names
	if err := os.Mkdir(own.dir, 0o755); err != nil {
		return nil, err
	}
	var pair []*server
	defer func() {
		for _, s := range pair {
			err = errors.Join(err, s.stop())
		}
	}()
	for i, name := range []string{nodens, uncounted} {
		s, err := own.start(ctx, name, address(40+i))
		if err != nil {
			return nil, err
		}
		pair = append(pair, s)
		if err := b.fill(s, job{To: b.names, Window: missWindow}); err != nil {
			return nil, err
		}
	}
	f = new(statisticsFigures)
	for i := range b.rounds {
		for k, rate := range statisticsRates {
			window := hitWindow
			if rate > 0 {
				window = maxWindow
			}
			round, err := b.round(i, pair, job{To: b.names, Duration: b.length, Window: window, Rate: rate})
			if err != nil {
				return nil, err
			}
			f.hits[k] = append(f.hits[k], round)
		}
		round, err := b.roundWithViewer(ctx, i, pair[0], own.self)
		if err != nil {
			return nil, err
		}
		if f.view = append(f.view, round); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return f, nil
}

// roundWithViewer measures s with and without nodens top, in an order that alternates.
func (b *bench) roundWithViewer(ctx context.Context, i int, s *server, self string) (map[string]sample, error) {
	samples := make(map[string]sample)
	for k := range 2 {
		name, end := nodens, func() error { return nil }
		if (i+k)%2 == 1 {
			name = viewed
			var err error
			if end, err = startViewer(ctx, self, s.status.String()); err != nil {
				return nil, err
			}
		}
		r, err := b.measure(s, job{To: b.names, Duration: b.length, Window: maxWindow, Rate: viewedRate})
		if err = errors.Join(err, end()); err != nil {
			return nil, err
		}
		samples[name] = r
	}
	return samples, nil
}

// startViewer opens nodens top in a terminal of its own, and waits until it shows the
// state of the daemon at address. The result ends it.
func startViewer(ctx context.Context, self, address string) (end func() error, err error) {
	view := exec.CommandContext(ctx, "script", "--quiet", "--flush", "--command", self+" view "+address, "/dev/null")
	view.Env = append(os.Environ(), "TERM=xterm", "COLUMNS=120", "LINES=40")
	view.SysProcAttr = dieWithParent()
	keys, err := view.StdinPipe()
	if err != nil {
		return nil, err
	}
	screen, err := view.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := view.Start(); err != nil {
		return nil, err
	}
	var seen bytes.Buffer
	for part := make([]byte, 1<<12); !strings.Contains(seen.String(), "queries/s"); {
		n, err := screen.Read(part)
		if seen.Write(part[:n]); err != nil {
			return nil, errors.Join(fmt.Errorf("nodens top: %w\n%s", err, &seen), view.Wait())
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, screen)
	}()
	return func() error {
		_, err := keys.Write([]byte("q"))
		<-closed
		return errors.Join(err, view.Wait())
	}, nil
}

// view is nodens top for the daemon at address.
func view(ctx context.Context, address string) error {
	source, err := top.Daemon(address, "")
	if err != nil {
		return err
	}
	return top.Options{Window: "1m"}.Run(ctx, os.Stdout, source)
}

// withoutStatistics writes an overlay for go build in which no hit is counted in the
// statistics of queries, and returns its file.
func (e *env) withoutStatistics(ctx context.Context) (string, error) {
	const pkg, head = "github.com/nodens-dns/nodens/internal/querystats", "(weight uint32, ok bool) {\n"
	dir := firstLine(ctx, "go", "list", "-f", "{{.Dir}}", pkg)
	file := filepath.Join(dir, "record.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if bytes.Count(text, []byte(head)) != 1 {
		return "", fmt.Errorf("%s: no method that chooses the samples", file)
	}
	other, err := e.write("record.go", strings.Replace(string(text), head, head+"\treturn 0, false\n", 1))
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: other}})
	if err != nil {
		return "", err
	}
	return e.write("overlay.json", string(overlay))
}

func (b *bench) reportStatistics(w io.Writer, f *statisticsFigures) {
	var rows [][]string
	row := func(what string, p phase, with, without string) {
		all, more := p.ratios(with, p, without, cpu), func(ratio float64) string { return number(100*(ratio-1), 1) }
		rows = append(rows, []string{what, number(p.median(with, rate), 0), number(p.median(with, cpu), 3), number(p.median(without, cpu), 3),
			more(median(all)), more(percentile(all, 25)) + " to " + more(percentile(all, 75)), p.saturated(with)})
	}
	for k, rate := range statisticsRates {
		what := fmt.Sprintf("statistics of queries, %d/s", rate)
		if rate == 0 {
			what = fmt.Sprintf("statistics of queries, %d in flight", hitWindow)
		}
		row(what, f.hits[k], nodens, uncounted)
	}
	row(fmt.Sprintf("an open nodens top, %d/s", viewedRate), f.view, viewed, nodens)
	fmt.Fprintf(w, "Cost of the statistics of queries and of an open nodens top: CPU per hit with and without.\n\n")
	table(w, []string{"what", "hits/s", "CPU µs with", "without", "more, %", "half of the rounds", "saturated"}, rows)
}
