package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/netsetup"
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
	wait  time.Duration
	hold  bool
	force bool
}

func teardownCommand(e env) *cli.Command {
	f := &teardownFlags{flags: newFlags()}
	return e.Command("teardown", "", "remove from the host everything that nodens has set up", teardownHelp,
		append(cmdline.Flags(f.setOwn()), cmdline.Flags(f.set())...), func(ctx context.Context, _ *cli.Command) error {
			if f.hold {
				<-ctx.Done()
				return nil
			}
			return f.run(ctx, e)
		})
}

// setOwn declares teardown's own flags.
func (f *teardownFlags) setOwn() *flag.FlagSet {
	fs := flag.NewFlagSet("teardown", flag.ContinueOnError)
	fs.DurationVar(&f.wait, "wait", 0, "wait for this `duration` until nodens has stopped")
	fs.BoolVar(&f.force, "force", false, "if a daemon runs, detach socket redirection only")
	fs.BoolVar(&f.hold, "hold", false, "remove nothing and end on SIGTERM")
	return fs
}

func (f *teardownFlags) run(ctx context.Context, e env) error {
	if err := f.awaitStop(ctx); err != nil {
		return err
	}
	if pid := runningPID(); pid != "" && f.force {
		return bpf.Teardown(f.Redirect.PinDir)
	} else if pid != "" {
		return fmt.Errorf("teardown: nodens runs (%s): it would repair its addresses and rules at once, and pods would lose redirection until it restarts; stop it first, or detach redirection alone with -force", pid)
	}
	err := errors.Join(bpf.Teardown(f.Redirect.PinDir), netsetup.Teardown(ctx, f.HostConfig()), daemon.RemoveSnapshot(f.CacheSnapshot))
	if err != nil {
		return err
	}
	removed := []string{"redirection (" + f.Redirect.PinDir + ")", "addresses", "rules"}
	if f.CacheSnapshot != "" {
		removed = append(removed, f.CacheSnapshot)
	}
	return printLine(e, "nothing of nodens is left on this node: "+strings.Join(removed, ", "))
}

// runningPID names the daemon in this network, or is empty.
func runningPID() string {
	running, found, err := doctor.FindDaemon("/proc")
	switch {
	case errors.Is(err, doctor.ErrSeveralDaemons):
		return "several processes"
	case found:
		return fmt.Sprintf("pid %d", running.PID)
	}
	return ""
}

// awaitStop waits until no process listens on the local addresses. A nodens that
// runs would set up again what teardown removes, and pods would lose their server.
func (f *teardownFlags) awaitStop(ctx context.Context) error {
	if f.wait == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		reason, err := f.inUse()
		if err != nil || reason == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing was removed: %s after %v; uninstall nodens first", reason, f.wait)
		case <-tick.C:
		}
	}
}

// inUse says why nodens counts as running, or nothing.
func (f *teardownFlags) inUse() (reason string, err error) {
	holders, err := f.listeners()
	if err != nil {
		return "", err
	}
	if len(holders) > 0 {
		return fmt.Sprintf("a process listens on %v", holders[0].Local), nil
	}
	if used, err := bpf.InUse(f.Redirect.PinDir); err == nil && used { // without pins there is an error
		return "a process uses " + f.Redirect.PinDir, nil
	}
	return "", nil
}

// listeners returns the sockets on the DNS port of the local addresses.
func (f *teardownFlags) listeners() ([]netsetup.PortOwner, error) {
	if len(f.LocalIPs) == 0 {
		return nil, nil
	}
	all, err := netsetup.PortOwners("/proc", f.DNSPort, f.LocalIPs...)
	return slices.DeleteFunc(all, func(o netsetup.PortOwner) bool {
		return !slices.ContainsFunc(f.LocalIPs, func(a netip.Addr) bool { return a == o.Local.Addr() })
	}), err
}
