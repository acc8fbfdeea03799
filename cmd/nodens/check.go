package main

import (
	"fmt"
	"strings"
)

// check validates a Corefile and prints its settings. With the daemon's flags, it
// checks the Corefile that a daemon with these flags uses, and that the limits fit
// the memory limit of its own cgroup.
func check(e env) error {
	if len(e.args) == 2 && !strings.HasPrefix(e.args[1], "-") {
		e.args = []string{"check", "-basecorefile=", "-conf", e.args[1]}
	}
	f, err := parseFlags(e.args[1:], e.stderr)
	if err != nil {
		return helpIsNoError(err)
	}
	f.resolve()
	f.Getenv, f.Root = e.getenv, e.root
	if len(e.args) == 1 {
		fmt.Fprintln(e.stderr, "usage: nodens check FILE, or nodens check with the daemon's flags")
		return errUsage
	}
	cfg, err := f.ReadCorefile(func(err error) { fmt.Fprintln(e.stderr, err) })
	if err != nil {
		return err
	}
	if err := cfg.Overlap(f.DNSPort); err != nil {
		return err
	}
	if err := f.CheckLimits(cfg); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(e.stderr, "warning:", w)
	}
	return cfg.Describe(e.stdout)
}
