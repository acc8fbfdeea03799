package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
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
	sample := f.resolve()
	beats, err := supervise.Attach(e.getenv)
	switch {
	case err != nil:
		return err
	case beats == nil && f.supervised(e, sample):
		return supervisor(ctx, e, f)
	}
	return serve(ctx, e, f, sample, beats)
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

// serve runs the daemon: parse, climb the steps, follow what changes, and
// undo the steps.
func serve(ctx context.Context, e env, f *flags, sample bool, beats *supervise.Beats) error {
	// The parts are told to stop by their steps, in order, and not all at once.
	d, err := newDaemon(context.WithoutCancel(ctx), e, f, sample, beats)
	if err != nil {
		return err
	}
	ctx, cancel := untilOrphaned(ctx, beats, d.log)
	defer cancel()
	cfg, err := d.files.read()
	if err != nil {
		return err
	}
	if err := d.openHost(cfg); err != nil {
		return err
	}
	steps := d.steps(cfg)
	if err := climb(ctx, steps); err != nil {
		return err
	}
	err = d.follow(ctx, e.signals)
	return errors.Join(err, descend(context.WithoutCancel(ctx), steps))
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
	sample := f.resolve()
	if len(e.args) == 1 {
		fmt.Fprintln(e.stderr, "usage: nodens check FILE, or nodens check with the daemon's flags")
		return errUsage
	}
	files := corefiles{flags: f, sample: sample, getenv: e.getenv, warn: func(err error) { fmt.Fprintln(e.stderr, err) }}
	cfg, err := files.read()
	if err != nil {
		return err
	}
	if err := cfg.Overlap(f.dnsPort); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(e.stderr, "warning:", w)
	}
	return cfg.Describe(e.stdout)
}

// udpWorkers is how many sockets share an address.
func udpWorkers() int { return runtime.GOMAXPROCS(0) }
