// Command nodens is a DNS cache for the nodes of a Kubernetes cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	// The image has no CA certificates, which forward needs for tls://. The host's
	// certificates take precedence.
	"github.com/urfave/cli/v3"
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// env is the environment of run.
type env struct {
	cmdline.Env
	args    []string // without the program's name
	stdin   io.Reader
	getenv  func(string) string
	root    fs.FS            // the file system, with /proc and /sys
	signals <-chan os.Signal // SIGHUP and SIGUSR1, for a reload
}

// terminal returns what the commands print to, and how they explain unknown flags.
func terminal(stdout, stderr io.Writer) cmdline.Env {
	return cmdline.Env{Stdout: stdout, Stderr: stderr, Removed: cmdline.InsteadOf, Hint: cmdline.DirectiveHint}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The daemon must continue if the reader of the log ends.
	signal.Ignore(syscall.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP, syscall.SIGUSR1)
	var status exitStatus
	err := run(ctx, env{args: os.Args[1:], stdin: os.Stdin, Env: terminal(os.Stdout, os.Stderr), getenv: os.Getenv, root: os.DirFS("/"), signals: reload})
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status)) // already reported
	case errors.Is(err, cmdline.ErrUsage), errors.Is(err, errUnexamined):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs one of the commands, or the daemon until ctx is done.
func run(ctx context.Context, e env) error {
	root := newCommand(e)
	err := root.Run(ctx, append([]string{"nodens"}, e.args...))
	var missing cli.ExitCoder // help for a command that does not exist
	if errors.As(err, &missing) {
		return e.Unexpected(root, e.args[len(e.args)-1])
	}
	return err
}

// serve runs the daemon until ctx is done.
func serve(ctx context.Context, e env, f *flags) error {
	switch {
	case f.version:
		return printLine(e, versionLine())
	case f.plugins:
		return printLine(e, strings.Join(config.DirectiveNames(), "\n"))
	}
	f.resolve()
	f.Version, f.Stdout, f.Stderr, f.Getenv, f.Root, f.Signals = buildVersion(), e.Stdout, e.Stderr, e.getenv, e.root, e.signals
	supervised, err := supervise.Attach(e.getenv)
	if f.Supervisor = supervised; err != nil {
		return err
	}
	if supervised == nil && f.supervised() {
		status, err := daemon.Supervise(ctx, &f.Options, e.args)
		if err == nil && status != 0 {
			err = exitStatus(status)
		}
		return err
	}
	err = daemon.Run(ctx, f.Options)
	if err != nil && f.LogJSON {
		slog.New(f.LogHandler(e.Stderr, nil)).Error("nodens ends", "error", err)
		return exitStatus(1)
	}
	return err
}

func printLine(e env, s string) error {
	_, err := fmt.Fprintln(e.Stdout, s)
	return err
}
