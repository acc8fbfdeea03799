package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/top"
)

const topHelp = `usage: nodens top [-once] [-o text|json] [-window 1m|5m|60m]

Shows the state of the nodens that runs in the same network: the top names, clients
and NXDOMAIN names, the names with the longest waits, zones and upstreams. If the
output is not a terminal, top prints once.

  -once          print once
  -o FORMAT      text or json; json is the whole state, once (default text)
  -window PERIOD period of the lists: 1m, 5m or 60m (default 1m)
`

func topCommand(e env) *cli.Command {
	var format cmdline.Output
	var o top.Options
	fs := format.Set("top")
	o.Set(fs)
	return e.Command("top", "", "show the top names and clients, zones and upstreams", topHelp, cmdline.Flags(fs), func(ctx context.Context, _ *cli.Command) error {
		o.JSON = format.JSON
		x, err := adopt(e)
		if err == nil && x.running.PID == 0 {
			err = errors.New("no nodens runs in this network")
		}
		if err != nil {
			return err
		}
		source, err := x.StateSource()
		if err != nil {
			return err
		}
		return o.Run(ctx, e.Stdout, source)
	})
}
