package main

import (
	"context"
	"flag"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/daemon"
)

const teardownHelp = `usage: nodens teardown [-wait DURATION] [-hold] [-force] [the daemon's flags]

Removes from the host everything that nodens has set up: the local addresses and
their link, the netfilter rules, socket redirection, and the files of -cache-snapshot
with their directory. Stop the daemon first: one that runs repairs its addresses and
rules at once.

  -wait DURATION first wait until no process listens on the addresses of -localip,
                 and remove nothing if one does after that time
  -hold          remove nothing and end on SIGTERM, for deploy/teardown.yaml

  -force         if a daemon runs, detach socket redirection only; it stays detached
                 until the daemon restarts

Exit status: 0 removed, or there was nothing; 1 a daemon runs, or an error; 2 a wrong
command line.
`

// teardownFlags are the daemon's flags and teardown's own.
type teardownFlags struct {
	*flags
	daemon.Teardown
	hold bool
}

func teardownCommand(e env) *cli.Command {
	f := &teardownFlags{flags: newFlags()}
	return e.Command("teardown", "", "remove from the host everything that nodens has set up", teardownHelp,
		append(cmdline.Flags(f.setOwn()), cmdline.Flags(f.set())...), func(ctx context.Context, _ *cli.Command) error {
			if f.hold {
				<-ctx.Done()
				return nil
			}
			removed, err := f.Run(ctx, &f.Options)
			if err != nil || removed == "" {
				return err
			}
			return printLine(e, "nothing of nodens is left on this node: "+removed)
		})
}

// setOwn declares teardown's own flags.
func (f *teardownFlags) setOwn() *flag.FlagSet {
	fs := flag.NewFlagSet("teardown", flag.ContinueOnError)
	fs.DurationVar(&f.Wait, "wait", 0, "wait for this `duration` until nodens has stopped")
	fs.BoolVar(&f.Force, "force", false, "if a daemon runs, detach socket redirection only")
	fs.BoolVar(&f.hold, "hold", false, "remove nothing and end on SIGTERM")
	return fs
}
