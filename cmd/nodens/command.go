package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/doctor"
)

// errUsage: the command line is wrong, and the reason is on stderr.
var errUsage = errors.New("usage")

// newCommand returns the program: the daemon, and its subcommands.
func newCommand(e env) *cli.Command {
	f := newFlags()
	root := command(e, "nodens", "", "serve", helpOfDaemon(f), cliFlags(f.set()), func(ctx context.Context, _ *cli.Command) error {
		return serve(ctx, e, f)
	})
	root.EnableShellCompletion = true
	root.HideHelpCommand = false
	root.ConfigureShellCompletionCommand = func(c *cli.Command) {
		c.Hidden, c.CustomHelpTemplate = false, completionHelp
		c.Usage = "print a completion script for bash, zsh or fish"
		c.Commands = slices.DeleteFunc(c.Commands, func(shell *cli.Command) bool { return shell.Name == "pwsh" })
		c.OnUsageError = root.OnUsageError
		c.Action = func(context.Context, *cli.Command) error { return wrongUsage(e, "%s", completionHelp) }
	}
	root.Commands = []*cli.Command{
		checkCommand(e), statusCommand(e), doctorCommand(e), migrateCommand(e), teardownCommand(e), lookupCommand(e),
		command(e, "version", "", "print the version", "usage: nodens version\n", nil, func(context.Context, *cli.Command) error {
			return printLine(e, versionLine())
		}),
		askCommand(e),
	}
	return root
}

// askCommand is the process that doctor starts in a pod's cgroup.
func askCommand(e env) *cli.Command {
	c := command(e, doctor.AskCommand, "", "", "", nil, func(ctx context.Context, _ *cli.Command) error {
		return doctor.Ask(ctx, e.stdin, e.stdout)
	})
	c.Hidden = true
	return c
}

// command returns a command without subcommands. Its help is text. An argument that
// it does not name in args is an error.
func command(e env, name, args, usage, text string, flags []cli.Flag, run cli.ActionFunc) *cli.Command {
	template := strings.ReplaceAll(text, "{{", "{{`{{`}}")
	return &cli.Command{
		Name: name, ArgsUsage: args, Usage: usage, Flags: flags,
		CustomHelpTemplate: template, CustomRootCommandHelpTemplate: template,
		HideHelpCommand: true,
		Writer:          e.stdout, ErrWriter: e.stderr,
		ShellComplete:  complete,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // main exits
		OnUsageError: func(_ context.Context, c *cli.Command, err error, _ bool) error {
			return wrongFlag(e, c, err)
		},
		Before: func(_ context.Context, c *cli.Command) (context.Context, error) {
			if first := c.Args().First(); c.Command(first) != nil && c.NumFlags() > 0 {
				return nil, wrongUsage(e, "write the flags after the command: nodens %s -FLAG …", first)
			}
			return nil, nil
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if args == "" && c.NArg() > 0 {
				return unexpected(e, c, c.Args().First())
			}
			return run(ctx, c)
		},
	}
}

// wrongUsage prints why the command line is wrong.
func wrongUsage(e env, format string, a ...any) error {
	fmt.Fprintf(e.stderr, format+"\n", a...)
	return errUsage
}

// wrongFlag explains an error of the parser. For an unknown flag, it says what to
// write instead.
func wrongFlag(e env, c *cli.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return wrongUsage(e, "%v", err)
	}
	if instead, ok := removedFlags[name]; ok {
		return wrongUsage(e, "the flag -%s was removed: write %q into a server block of the Corefile, see docs/cilium.md", name, instead)
	}
	var names []string
	for _, f := range c.Flags {
		names = append(names, f.Names()...)
	}
	hint := "run " + helpCommand(c) + " for the flags"
	if near := config.Nearest(name, names); near != "" {
		hint = "did you mean -" + near + "?"
	} else if d := directiveIn(name); d != "" {
		hint = "settings of " + d + " are in the Corefile, see docs/corefile.md"
	}
	return wrongUsage(e, "unknown flag -%s: %s", name, hint)
}

// directiveIn returns the directive that a flag's name seems to mean, or "".
func directiveIn(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	for _, d := range config.Directives() {
		if slices.Contains(words, d.Name) {
			return d.Name
		}
	}
	for _, d := range config.Directives() {
		for _, o := range d.Options {
			if option, _, _ := strings.Cut(o, " "); slices.Contains(words, option) {
				return d.Name + " (" + option + ")"
			}
		}
	}
	return ""
}

// unexpected reports an argument that the command does not take.
func unexpected(e env, c *cli.Command, arg string) error {
	var names []string
	for _, sub := range c.Commands {
		if !sub.Hidden {
			names = append(names, sub.Name)
		}
	}
	what, hint := "unexpected argument", "run "+helpCommand(c)
	if len(names) > 0 {
		what, hint = "unknown command", hint+" for the commands and flags"
	}
	if near := config.Nearest(arg, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return wrongUsage(e, "%s %q: %s", what, arg, hint)
}

func helpCommand(c *cli.Command) string {
	if c.Name == "nodens" {
		return "nodens help"
	}
	return "nodens help " + c.Name
}

// complete prints what may follow on the command line, as WORD:DESCRIPTION.
func complete(_ context.Context, c *cli.Command) {
	w := c.Root().Writer
	args := c.Args().Slice()
	if len(args) == 0 || !strings.HasPrefix(args[len(args)-1], "-") {
		for _, sub := range c.VisibleCommands() {
			fmt.Fprintf(w, "%s:%s\n", sub.Name, sub.Usage)
		}
		return
	}
	dashes := "-"
	if strings.HasPrefix(args[len(args)-1], "--") {
		dashes = "--"
	}
	for _, f := range c.VisibleFlags() {
		if g, ok := f.(*cli.GenericFlag); ok {
			fmt.Fprintf(w, "%s%s:%s\n", dashes, g.Name, strings.ReplaceAll(firstClause(g.Usage), "`", ""))
		}
	}
}

// firstClause returns the part of a flag's description that fits on a line of a
// completion.
func firstClause(usage string) string {
	if i := strings.IndexAny(usage, ";,.("); i > 0 {
		usage = usage[:i]
	}
	return strings.TrimSpace(usage)
}

// cliFlags returns the flags of a set of Go's flag package, as which they are
// declared.
func cliFlags(fs *flag.FlagSet) []cli.Flag {
	var all []cli.Flag
	fs.VisitAll(func(f *flag.Flag) {
		all = append(all, &cli.GenericFlag{Name: f.Name, Usage: f.Usage, Value: flagValue{f.Value}, Local: true})
	})
	return all
}

// flagValue makes a flag.Value a flag.Getter.
type flagValue struct{ flag.Value }

func (v flagValue) Get() any { return v.String() }

// Set says what a boolean may be, which Go's flag package does not.
func (v flagValue) Set(s string) error {
	err := v.Value.Set(s)
	if err != nil && v.IsBoolFlag() {
		return errors.New("want true or false")
	}
	return err
}

// IsBoolFlag reports whether the flag needs no value.
func (v flagValue) IsBoolFlag() bool {
	b, ok := v.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
