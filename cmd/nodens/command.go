package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/doctor"
)

// newCommand returns the program: the daemon, and its subcommands.
func newCommand(e env) *cli.Command {
	f := newFlags()
	root := e.Command("nodens", "", "serve", helpOfDaemon(f), cmdline.Flags(f.set()), func(ctx context.Context, _ *cli.Command) error {
		return serve(ctx, e, f)
	})
	root.EnableShellCompletion = true
	root.HideHelpCommand = false
	root.ConfigureShellCompletionCommand = func(c *cli.Command) {
		c.Hidden, c.CustomHelpTemplate = false, completionHelp
		c.Usage = "print a completion script for bash, zsh or fish"
		c.Commands = slices.DeleteFunc(c.Commands, func(shell *cli.Command) bool { return shell.Name == "pwsh" })
		c.OnUsageError = root.OnUsageError
		c.Action = func(context.Context, *cli.Command) error { return e.WrongUsage("%s", completionHelp) }
	}
	root.Commands = []*cli.Command{
		checkCommand(e), statusCommand(e), doctorCommand(e), topCommand(e), migrateCommand(e), teardownCommand(e), lookupCommand(e),
		e.Command("version", "", "print the version", "usage: nodens version\n", nil, func(context.Context, *cli.Command) error {
			return printLine(e, versionLine())
		}),
		askCommand(e),
	}
	return root
}

// askCommand is the process that doctor starts in a pod's cgroup.
func askCommand(e env) *cli.Command {
	c := e.Command(doctor.AskCommand, "", "", "", nil, func(ctx context.Context, _ *cli.Command) error {
		return doctor.Ask(ctx, e.stdin, e.Stdout)
	})
	c.Hidden = true
	return c
}
