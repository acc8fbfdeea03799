package main

import (
	"errors"
	"flag"
	"slices"

	"github.com/urfave/cli/v3"
)

// outputFormat is the value of -o.
type outputFormat struct{ json bool }

// set declares -o.
func (o *outputFormat) set(command string) *flag.FlagSet {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	fs.Func("o", "print the result as `text` or json (default text)", func(s string) error {
		o.json = s == "json"
		if s != "json" && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
	return fs
}

// given reports whether the command line has a flag that is not in own.
func given(c *cli.Command, own *flag.FlagSet) bool {
	return slices.ContainsFunc(c.LocalFlagNames(), func(name string) bool { return own.Lookup(name) == nil })
}
