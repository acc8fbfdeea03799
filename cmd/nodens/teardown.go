package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/netsetup"
)

const teardownHelp = `usage: nodens teardown [the daemon's flags]

Removes from the host everything that nodens has set up: the local addresses and
their link, the netfilter rules, and socket redirection.

Exit status: 0 removed, or there was nothing; 1 an error; 2 a wrong command line.
`

func teardownCommand(e env) *cli.Command {
	f := newFlags()
	return command(e, "teardown", "", "remove from the host everything that nodens has set up", teardownHelp, cliFlags(f.set()), func(ctx context.Context, _ *cli.Command) error {
		return errors.Join(bpf.Teardown(f.Redirect.PinDir), netsetup.Teardown(ctx, f.HostConfig()))
	})
}
