package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/config"
)

const checkHelp = `usage: nodens check [-o text|json] [the daemon's flags] [FILE]

Validates a Corefile and prints its settings, with the defaults. Files, interfaces
and addresses that it names are checked when the daemon starts. FILE - is standard
input. Without FILE, check reads the Corefile that a daemon with these flags reads,
replaces its placeholders, and checks that the limits fit the memory limit of its own
cgroup.

  -o FORMAT      text or json (default text)

Exit status: 0 valid, maybe with warnings; 1 invalid; 2 a wrong command line.
`

// checkResult is the output of check -o json.
type checkResult struct {
	OK       bool               `json:"ok"`
	Errors   []config.Problem   `json:"errors"`
	Warnings []config.Problem   `json:"warnings"`
	Blocks   []config.BlockText `json:"blocks"`
}

func checkCommand(e env) *cli.Command {
	f, format := newFlags(), new(cmdline.Output)
	own := format.Set("check")
	return e.Command("check", "[FILE]", "validate a Corefile and print its settings, with the defaults", checkHelp,
		append(cmdline.Flags(own), cmdline.Flags(f.set())...), func(_ context.Context, c *cli.Command) error {
			switch {
			case c.NArg() > 1:
				return e.Unexpected(c, c.Args().Get(1))
			case c.NArg() == 1:
				f.Corefile, f.BaseCorefile = c.Args().First(), ""
				if f.Corefile == "-" {
					text, err := io.ReadAll(e.stdin)
					if err != nil {
						return err
					}
					f.Corefile, f.CorefileText = "standard input", text
				}
			case !cmdline.Given(c, own):
				return e.WrongUsage("usage: nodens check FILE, or nodens check with the daemon's flags")
			}
			return check(e, f, format.JSON)
		})
}

// check prints the settings of the Corefile, its errors and its warnings.
func check(e env, f *flags, asJSON bool) error {
	f.resolve()
	f.Getenv, f.Root = e.getenv, e.root
	var warnings []error
	cfg, err := f.ReadCorefile(func(err error) { warnings = append(warnings, err) })
	if err == nil {
		warnings = append(warnings, cfg.Warnings...)
		err = errors.Join(cfg.Overlap(f.DNSPort), cfg.Loops(f.DNSPort), f.CheckLimits(cfg), f.CheckStatus())
	}
	if asJSON {
		r := checkResult{OK: err == nil, Errors: config.Problems(err), Warnings: config.Problems(errors.Join(warnings...)), Blocks: []config.BlockText{}}
		if cfg != nil {
			r.Blocks = cfg.Text()
		}
		if werr := cmdline.WriteJSON(e.Stdout, r); werr != nil || err == nil {
			return werr
		}
		return exitStatus(1)
	}
	for _, w := range warnings {
		fmt.Fprintln(e.Stderr, "warning:", w)
	}
	if err != nil {
		return err
	}
	return cfg.Describe(e.Stdout)
}
