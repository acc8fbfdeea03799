package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/netsetup/firewall"
)

// errIncomplete: the exit status of the status command is 1.
var errIncomplete = errors.New("the host is not set up as wanted")

const statusHelp = `usage: nodens status [-o text|json] [the daemon's flags]

Prints what a daemon has set up on the host, its limits, and whether everything that
it was asked to set up is there. Without the daemon's flags, status uses flags, files
and environment of the nodens that runs in the same network: on the host or in a
container.

  -o FORMAT      text or json (default text)

Exit status: 0 complete; 1 something is missing, or an error; 2 a wrong command line.
`

// statusResult is the output of status -o json.
type statusResult struct {
	OK    bool         `json:"ok"`
	State []statusLine `json:"state"`
}

// statusLine is the state of one object.
type statusLine struct {
	Object string `json:"object"`
	State  string `json:"state"`
}

func statusCommand(e env) *cli.Command {
	f, format := newFlags(), new(outputFormat)
	own := format.set("status")
	return command(e, "status", "", "print what a daemon has set up on the host, and whether it is complete", statusHelp,
		append(cliFlags(own), cliFlags(f.set())...), func(ctx context.Context, c *cli.Command) error {
			x, err := newExamined(e, f), error(nil)
			var out bytes.Buffer
			if !given(c, own) {
				if x, err = adopt(e); err != nil {
					return err
				}
				fmt.Fprintf(&out, "daemon\t%v\n", x)
			}
			complete, err := status(ctx, e, x.flags, &out)
			if format.json {
				err = errors.Join(err, writeJSON(e.stdout, statusResult{err == nil && complete, lines(out.String())}))
			} else if _, werr := out.WriteTo(e.stdout); werr != nil {
				err = errors.Join(err, werr)
			}
			if err == nil && !complete {
				return errIncomplete
			}
			return err
		})
}

// lines splits the lines of status, OBJECT TAB STATE.
func lines(text string) []statusLine {
	var all []statusLine
	for line := range strings.Lines(text) {
		object, state, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, statusLine{object, state})
	}
	return all
}

// wantsRules reports whether the daemon installs netfilter rules.
func (f *flags) wantsRules() bool { return f.SetupRules && !f.Sample }

// isComplete ignores the parts that the flags turn off.
func isComplete(f *flags, s netsetup.Status) bool {
	if !f.wantsRules() {
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
		fmt.Fprintf(w, "address\t%s on %s%s\n", a.Address, a.Link, after(a.Problem))
	}
	fmt.Fprintf(w, "rules\t%s\n", rulesState(f, s.Rules))
	switch {
	case f.wantsRules():
		fmt.Fprintf(w, "accepts\t%s\n", accepts(s.Firewall))
	case len(s.Firewall.Lacking) > 0:
		fmt.Fprintf(w, "note\tno rules are wanted, but these chains drop by default: %s\n", strings.Join(s.Firewall.Lacking, ", "))
	}
	for _, d := range s.Firewall.Drops {
		fmt.Fprintf(w, "note\t%s %s\n", d.What, d.Why)
	}
}

func rulesState(f *flags, s netsetup.RulesStatus) string {
	switch {
	case !f.wantsRules():
		return "not wanted"
	case s.Present:
		return "present" + by(s.Generation) + after(s.Problem)
	case s.Problem != "":
		return s.Problem
	}
	return "none needed"
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

// after adds a problem to a state.
func after(p string) string {
	if p == "" {
		return ""
	}
	return ": " + p
}

// readCorefile reads the Corefile. If it cannot, it prints an error and returns an
// empty configuration, because status can still print the host's state.
func (f *flags) readCorefile(e env) *config.Config {
	printError := func(err error) { fmt.Fprintln(e.stderr, err) }
	cfg, err := f.ReadCorefile(printError)
	if err != nil {
		printError(fmt.Errorf("cannot determine the address of the metrics, and whether the Corefile has redirection: %w", err))
		return new(config.Config)
	}
	return cfg
}

// status writes the host set-up and the limits of the running daemon to w. It
// returns false if part of the set-up is missing.
func status(ctx context.Context, e env, f *flags, w io.Writer) (complete bool, err error) {
	complete = true
	if len(f.HostConfig().Addrs) == 0 {
		fmt.Fprintln(w, "link\tnot wanted: the daemon has no address to add to the host")
	} else if complete, err = hostStatus(ctx, f, w); err != nil {
		return false, err
	}
	cfg := f.readCorefile(e)
	daemon.PrintLimits(ctx, w, cfg)
	redirected, err := redirect.PrintStatus(w, f.Redirect.PinDir, cfg.Redirect().Mode == config.RedirectOn)
	return complete && redirected, err
}

func hostStatus(ctx context.Context, f *flags, w io.Writer) (complete bool, err error) {
	h, err := netsetup.New(f.HostConfig())
	if err != nil {
		return false, err
	}
	defer h.Close()
	s, err := h.Status(ctx)
	if err != nil {
		return false, err
	}
	printStatus(w, f, s)
	return isComplete(f, s), nil
}
