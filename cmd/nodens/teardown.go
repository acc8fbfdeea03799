package main

import (
	"context"
	"errors"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/netsetup"
)

// teardown is the teardown command. It removes what nodens has set up on the host.
func teardown(ctx context.Context, e env) error {
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	return errors.Join(bpf.Teardown(f.Redirect.PinDir), netsetup.Teardown(ctx, f.HostConfig()))
}
