package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/netsetup/firewall"
)

// errIncomplete: the exit status of the status command is 1.
var errIncomplete = errors.New("the host is not set up as wanted")

// isComplete ignores the parts that the flags turn off.
func isComplete(f *flags, s netsetup.Status) bool {
	if !f.SetupRules {
		s.Rules.Present, s.Rules.Problem, s.Firewall.Problem = true, "", ""
	}
	if f.SetupInterface {
		return s.OK()
	}
	return s.Rules.Problem == "" && s.Firewall.Problem == ""
}

// printStatus prints one line for each object: its kind and its state.
func printStatus(w io.Writer, f *flags, s netsetup.Status) {
	link := s.Interface
	if link == "" {
		link = "none"
	}
	fmt.Fprintf(w, "link\t%s%s\n", link, by(s.Generation))
	for _, a := range s.Addresses {
		if a.Link == "" {
			fmt.Fprintf(w, "address\t%s %s\n", a.Address, a.Problem)
			continue
		}
		fmt.Fprintf(w, "address\t%s on %s%s\n", a.Address, a.Link, problem(a.Problem))
	}
	switch {
	case !f.SetupRules:
		fmt.Fprintln(w, "rules\tnot wanted")
	case s.Rules.Present:
		fmt.Fprintf(w, "rules\tpresent%s%s\n", by(s.Rules.Generation), problem(s.Rules.Problem))
	case s.Rules.Problem != "":
		fmt.Fprintf(w, "rules\t%s\n", s.Rules.Problem)
	default:
		fmt.Fprintln(w, "rules\tnone needed")
	}
	switch {
	case f.SetupRules:
		fmt.Fprintf(w, "accepts\t%s\n", accepts(s.Firewall))
	case len(s.Firewall.Lacking) > 0:
		fmt.Fprintf(w, "note\tno rules are wanted, but these chains drop by default: %s\n", strings.Join(s.Firewall.Lacking, ", "))
	}
	for _, d := range s.Firewall.Drops {
		fmt.Fprintf(w, "note\t%s %s\n", d.What, d.Why)
	}
}

// accepts names the other tables' chains that have our accept rules.
func accepts(s firewall.Status) string {
	switch {
	case s.Problem != "":
		return s.Problem
	case len(s.Chains) == 0:
		return "none needed"
	}
	return "in " + strings.Join(s.Chains, ", ")
}

func by(generation string) string {
	if generation == "" {
		return ""
	}
	return " (generation " + generation + ")"
}

func problem(p string) string {
	if p == "" {
		return ""
	}
	return ": " + p
}

// readCorefile reads the Corefile. If it cannot, it prints an error and returns an
// empty configuration, because status can still print the host's state.
func (f *flags) readCorefile(e env) *config.Config {
	f.Getenv = e.getenv
	printError := func(err error) { fmt.Fprintln(e.stderr, err) }
	cfg, err := f.ReadCorefile(printError)
	if err != nil {
		printError(fmt.Errorf("cannot determine the address of the metrics, and whether the Corefile has redirection: %w", err))
		return new(config.Config)
	}
	return cfg
}

// status is the status command. It prints the host set-up and the limits of the
// running daemon, and returns errIncomplete if part of the set-up is missing.
func status(ctx context.Context, e env) error {
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	f.resolve()
	h, err := netsetup.New(f.HostConfig())
	if err != nil {
		return err
	}
	defer h.Close()
	s, err := h.Status(ctx)
	if err != nil {
		return err
	}
	printStatus(e.stdout, f, s)
	cfg := f.readCorefile(e)
	daemon.PrintLimits(ctx, e.stdout, cfg)
	redirected, err := redirect.PrintStatus(e.stdout, f.Redirect.PinDir, cfg.Redirect().Mode == config.RedirectOn)
	if err != nil {
		return err
	}
	if !isComplete(f, s) || !redirected {
		return errIncomplete
	}
	return nil
}
