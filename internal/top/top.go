// Package top shows the state of nodens in a terminal: top names and clients, and the
// slow names.
package top

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/nodens-dns/nodens/internal/state"
)

// Source calls show with a state about once a second, until ctx is done, show returns an
// error, or the connection fails.
type Source func(ctx context.Context, show func(*state.State) error) error

// Daemon returns the source of the daemon at this -status-address, with the token in this
// file. An empty file name means no token.
func Daemon(address, tokenFile string) (Source, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("nodens runs without -status-address, which serves its state")
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	var token []byte
	if tokenFile != "" {
		if token, err = os.ReadFile(tokenFile); err != nil {
			return nil, fmt.Errorf("read the token of the status address: %w", err)
		}
	}
	base := "http://" + net.JoinHostPort(host, port)
	return func(ctx context.Context, show func(*state.State) error) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(timeout, func() { cancel(errSilent) })
		defer silence.Stop()
		err := state.Follow(ctx, base, strings.TrimSpace(string(token)), func(s *state.State) error {
			silence.Reset(timeout)
			return show(s)
		})
		if err != nil && context.Cause(ctx) == errSilent {
			err = errSilent
		}
		if err != nil {
			return fmt.Errorf("nodens does not report its state at %s: %w", address, err)
		}
		return nil
	}, nil
}

// timeout limits the wait for each state of a daemon.
const timeout = 10 * time.Second

// errSilent means that a daemon sent no state for timeout.
var errSilent = fmt.Errorf("no state within %v", timeout)

// errEnough ends a source.
var errEnough = fmt.Errorf("enough")

// First returns the first state of the source.
func First(ctx context.Context, source Source) (s *state.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = source(ctx, func(first *state.State) error {
		s = first
		return errEnough
	})
	if s != nil {
		return s, nil
	}
	return nil, err
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Print writes the summary of a state and the first rows of each of its lists. Window
// is one of state.Windows.
func Print(w io.Writer, s *state.State, window string, rows int) error {
	lines := summary(s, nil)
	for _, l := range lists(s, window) {
		l.rows = l.rows[:min(rows, len(l.rows))]
		if len(l.rows) > 0 {
			lines = append(append(lines, "", l.name), l.lines()...)
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// summary returns the rates between before and s. If before is nil or of another process,
// it returns the rates since the start.
func summary(s, before *state.State) []string {
	sum := state.State{Time: s.Started, Started: s.Started}
	if before != nil && continues(before, s) {
		sum = *before
	}
	queries, hits, misses := s.Requests-sum.Requests, s.Hits-sum.Hits, s.Misses-sum.Misses
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY"
	}
	down := 0
	for _, u := range s.Upstreams {
		if !u.Healthy {
			down++
		}
	}
	name := strings.TrimSpace(s.Node + " " + strings.Join(s.Addresses, ","))
	lines := []string{
		fmt.Sprintf("nodens %s  %s  %s  up %v", s.Version, name, ready, s.Time.Sub(s.Started).Round(time.Second)),
		fmt.Sprintf("%s queries/s  %s hits  %s SERVFAIL  cache %s of %s", rate(queries, s.Time.Sub(sum.Time).Seconds()), percent(hits, hits+misses),
			percent(s.Failures-sum.Failures, queries), size(s.Cache.Bytes), size(s.Cache.Budget)),
		fmt.Sprintf("redirection %s (%s)  fast path %s (%s, %s of queries)  upstreams %d, %d down", s.Redirection.Mode, s.Redirection.State,
			s.Fastpath.Mode, s.Fastpath.State, percent(s.Fastpath.Answers-sum.Fastpath.Answers, queries), len(s.Upstreams), down),
	}
	for _, p := range s.Problems {
		lines = append(lines, problem+p)
	}
	for i := range lines {
		lines[i] = Printable(lines[i])
	}
	return lines
}

// continues reports whether s is a later state of the process of before.
func continues(before, s *state.State) bool {
	return before.Started.Equal(s.Started) && before.Node == s.Node && before.Time.Before(s.Time) &&
		before.Requests <= s.Requests && before.Hits <= s.Hits && before.Misses <= s.Misses &&
		before.Failures <= s.Failures && before.Fastpath.Answers <= s.Fastpath.Answers
}

// problem is the prefix of a line with a problem.
const problem = "PROBLEM: "
