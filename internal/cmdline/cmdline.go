// Package cmdline builds commands of urfave/cli from flags that are declared with Go's
// flag package, and explains wrong command lines.
package cmdline

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/config"
)

// ErrUsage means that the command line is wrong, and that the reason is on stderr.
var ErrUsage = errors.New("usage")

// Env is what the commands of a program share.
type Env struct {
	Stdout, Stderr io.Writer
	// Removed returns what replaces a flag that no longer exists, or "".
	Removed func(flag string) string
	// Hint returns what to do about an unknown flag that resembles no other, or "".
	Hint func(flag string) string
}

// Command returns a command without subcommands. Its help is text. An argument that
// it does not name in args is an error.
func (e Env) Command(name, args, usage, text string, flags []cli.Flag, run cli.ActionFunc) *cli.Command {
	template := strings.ReplaceAll(text, "{{", "{{`{{`}}")
	return &cli.Command{
		Name: name, ArgsUsage: args, Usage: usage, Flags: flags,
		CustomHelpTemplate: template, CustomRootCommandHelpTemplate: template,
		HideHelpCommand: true,
		Writer:          e.Stdout, ErrWriter: e.Stderr,
		ShellComplete:  complete,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // main exits
		OnUsageError: func(_ context.Context, c *cli.Command, err error, _ bool) error {
			return e.wrongFlag(c, err)
		},
		Before: func(_ context.Context, c *cli.Command) (context.Context, error) {
			if first := c.Args().First(); c.Command(first) != nil && c.NumFlags() > 0 {
				return nil, e.WrongUsage("write the flags after the command: %s %s -FLAG …", c.Name, first)
			}
			return nil, nil
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if args == "" && c.NArg() > 0 {
				return e.Unexpected(c, c.Args().First())
			}
			return run(ctx, c)
		},
	}
}

// WrongUsage prints why the command line is wrong, and returns ErrUsage.
func (e Env) WrongUsage(format string, a ...any) error {
	fmt.Fprintf(e.Stderr, format+"\n", a...)
	return ErrUsage
}

// wrongFlag explains an error of the parser. For an unknown flag, it says what to
// write instead.
func (e Env) wrongFlag(c *cli.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return e.WrongUsage("%v", err)
	}
	if text := e.Removed(name); text != "" {
		return e.WrongUsage("the flag -%s was removed: %s", name, text)
	}
	if name == "setupebtables" || name == "initialdelay" || strings.HasPrefix(name, "tls-") {
		return e.WrongUsage("unknown flag -%s: node-cache has it and nodens does not, see docs/migrate.md; leave it out", name)
	}
	var names []string
	for _, f := range c.Flags {
		names = append(names, f.Names()...)
	}
	hint := "run " + helpCommand(c) + " for the flags"
	if near := config.Nearest(name, names); near != "" {
		hint = "did you mean -" + near + "?"
	} else if text := e.Hint(name); text != "" {
		hint = text
	}
	return e.WrongUsage("unknown flag -%s: %s", name, hint)
}

// Unexpected reports an argument that the command does not take. It returns ErrUsage.
func (e Env) Unexpected(c *cli.Command, arg string) error {
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
	return e.WrongUsage("%s %q: %s", what, arg, hint)
}

func helpCommand(c *cli.Command) string {
	if c == c.Root() {
		return c.Name + " help"
	}
	return c.Root().Name + " help " + c.Name
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

// Flags converts flags that are declared with Go's flag package.
func Flags(fs *flag.FlagSet) []cli.Flag {
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

// Output is the value of -o.
type Output struct{ JSON bool }

// Set declares -o.
func (o *Output) Set(command string) *flag.FlagSet {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	fs.Func("o", "print the result as `text` or json (default text)", func(s string) error {
		o.JSON = s == "json"
		if s != "json" && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
	return fs
}

// Given reports whether the command line has a flag that is not in own.
func Given(c *cli.Command, own *flag.FlagSet) bool {
	return slices.ContainsFunc(c.LocalFlagNames(), func(name string) bool { return own.Lookup(name) == nil })
}

// WriteJSON writes v, indented. The text of v may come from the network, so WriteJSON
// escapes each character that could control a terminal.
func WriteJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r): // MarshalIndent escapes the other ASCII
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, "\\u%04x\\u%04x", high, low)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	_, err = io.WriteString(w, b.String()+"\n")
	return err
}
