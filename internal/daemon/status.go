package daemon

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/netsetup/firewall"
)

// wantsRules reports whether the daemon installs netfilter rules.
func (o *Options) wantsRules() bool { return o.SetupRules && !o.Sample }

// isComplete ignores the parts that the options turn off.
func isComplete(o *Options, s netsetup.Status) bool {
	if !o.wantsRules() {
		s.Rules.Present, s.Rules.Problem, s.Firewall.Problem = true, "", ""
	}
	if o.SetupInterface {
		return s.OK()
	}
	return s.Rules.Problem == "" && s.Firewall.Problem == ""
}

// printHost prints one line for each object: its kind and its state.
func printHost(o *Options, w io.Writer, s netsetup.Status) {
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
	fmt.Fprintf(w, "rules\t%s\n", rulesState(o, s.Rules))
	switch {
	case o.wantsRules():
		fmt.Fprintf(w, "accepts\t%s\n", accepts(s.Firewall))
	case len(s.Firewall.Lacking) > 0:
		fmt.Fprintf(w, "note\tno rules are wanted, but these chains drop by default: %s\n", strings.Join(s.Firewall.Lacking, ", "))
	}
	for _, d := range s.Firewall.Drops {
		fmt.Fprintf(w, "note\t%s %s\n", d.What, d.Why)
	}
}

func rulesState(o *Options, s netsetup.RulesStatus) string {
	switch {
	case !o.wantsRules():
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

// PrintStatus prints the host set-up and the limits of the running daemon, one object
// a line. It returns complete false if part of the set-up is missing. If the Corefile
// cannot be read, it calls printError and goes on with the host.
func (o *Options) PrintStatus(ctx context.Context, w io.Writer, printError func(error)) (complete bool, err error) {
	complete = true
	if len(o.HostConfig().Addrs) == 0 {
		fmt.Fprintln(w, "link	not wanted: the daemon has no address to add to the host")
	} else {
		s, err := o.hostStatus(ctx)
		if err != nil {
			return false, err
		}
		printHost(o, w, s)
		complete = isComplete(o, s)
	}
	cfg, err := o.ReadCorefile(printError)
	if err != nil {
		printError(fmt.Errorf("cannot determine the address of the metrics, and whether the Corefile has redirection: %w", err))
		cfg = new(config.Config)
	}
	printLimits(ctx, w, cfg)
	redirected, err := redirect.PrintStatus(w, o.Redirect.PinDir, cfg.Redirect().Mode == config.RedirectOn)
	plan := fastpath.NewPlan(cfg, o.Redirect.Kubepods, o.Redirect.PodLogs)
	answering := fastpath.PrintStatus(w, plan, func() (fastpath.State, error) { return o.fastpathState(ctx, cfg) })
	return complete && redirected && answering, err
}

// hostStatus reads the state of the host set-up.
func (o *Options) hostStatus(ctx context.Context) (netsetup.Status, error) {
	h, err := netsetup.New(o.HostConfig())
	if err != nil {
		return netsetup.Status{}, err
	}
	defer h.Close()
	return h.Status(ctx)
}
