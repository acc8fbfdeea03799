package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// run is the program: a command, or the daemon until ctx is done.
func run(ctx context.Context, e env) error {
	if len(e.args) > 0 {
		switch e.args[0] {
		case "check":
			return check(e)
		case "doctor":
			return examine(ctx, e)
		case doctor.AskCommand:
			return doctor.Ask(ctx, os.Stdin, e.stdout)
		case "migrate":
			return migrateManifests(e, os.Stdin)
		case "status":
			return status(ctx, e)
		case "teardown":
			return teardown(ctx, e)
		case "version":
			return printVersion(e)
		}
	}
	f, err := parseFlags(e.args, e.stderr)
	switch {
	case err != nil:
		return helpIsNoError(err)
	case f.version:
		return printLine(e, versionLine())
	case f.plugins:
		return printLine(e, strings.Join(config.DirectiveNames(), "\n"))
	}
	f.resolve()
	f.Version, f.Stdout, f.Stderr, f.Getenv, f.Signals = buildVersion(), e.stdout, e.stderr, e.getenv, e.signals
	f.Supervisor, err = supervise.Attach(e.getenv)
	switch {
	case err != nil:
		return err
	case f.Supervisor == nil && f.supervised():
		return supervisor(ctx, e, f)
	}
	return daemon.Run(ctx, f.Options)
}

func printLine(e env, s string) error {
	_, err := fmt.Fprintln(e.stdout, s)
	return err
}

func helpIsNoError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// check validates a Corefile and prints what it says. With flags it is the one
// that the daemon would use with them, placeholders filled in.
func check(e env) error {
	if len(e.args) == 2 && !strings.HasPrefix(e.args[1], "-") {
		e.args = []string{"check", "-basecorefile=", "-conf", e.args[1]}
	}
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	f.resolve()
	f.Getenv = e.getenv
	if len(e.args) == 1 {
		fmt.Fprintln(e.stderr, "usage: nodens check FILE, or nodens check with the daemon's flags")
		return errUsage
	}
	cfg, err := f.ReadCorefile(func(err error) { fmt.Fprintln(e.stderr, err) })
	if err != nil {
		return err
	}
	if err := cfg.Overlap(f.DNSPort); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(e.stderr, "warning:", w)
	}
	return cfg.Describe(e.stdout)
}
