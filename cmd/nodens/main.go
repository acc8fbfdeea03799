// Command nodens is a DNS cache for the nodes of a Kubernetes cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	// The image has no CA certificates, which forward needs for tls://. The host's
	// certificates take precedence.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// env is the environment of run.
type env struct {
	args           []string // without the program's name
	stdout, stderr io.Writer
	getenv         func(string) string
	root           fs.FS            // the file system, with /proc and /sys
	signals        <-chan os.Signal // SIGHUP and SIGUSR1, for a reload
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The daemon must continue if the reader of the log ends.
	signal.Ignore(syscall.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP, syscall.SIGUSR1)
	var status exitStatus
	err := run(ctx, env{args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, root: os.DirFS("/"), signals: reload})
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status)) // already reported
	case errors.Is(err, errUsage), errors.Is(err, errUnexamined):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs one of the commands, or the daemon until ctx is done.
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
	f.Version, f.Stdout, f.Stderr, f.Getenv, f.Root, f.Signals = buildVersion(), e.stdout, e.stderr, e.getenv, e.root, e.signals
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
