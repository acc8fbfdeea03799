package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodens-dns/nodens/internal/doctor"
)

// examined is the daemon that status and doctor examine.
type examined struct {
	*flags
	running doctor.Daemon // PID 0: none runs, or none was looked for
	given   bool          // flags were given, and no daemon was looked for
}

// adopt returns the daemon that runs in this network with its own flags, files and
// environment. If none runs, it returns a daemon without flags.
func adopt(e env) (examined, error) {
	running, found, err := doctor.FindDaemon("/proc")
	if err != nil {
		return examined{}, err
	}
	if !found {
		return newExamined(e, newFlags(), false), nil
	}
	f, err := parseFlags(running.Args, io.Discard)
	if err != nil {
		return examined{}, fmt.Errorf("nodens (pid %d) has flags that this version does not know: %s", running.PID, strings.Join(running.Args, " "))
	}
	f.Files, f.Dir, f.uid = running.Root, running.Dir, running.UID
	f.resolve()
	if f.Getenv = e.getenv; running.Env != nil {
		f.Getenv = func(name string) string { return running.Env[name] }
	}
	return examined{f, running, false}, nil
}

func newExamined(e env, f *flags, given bool) examined {
	f.resolve()
	f.Getenv = e.getenv
	return examined{flags: f, given: given}
}

// String names the daemon.
func (x examined) String() string {
	switch {
	case x.given:
		return "not looked for; this is about one with the given flags"
	case x.running.PID == 0:
		return "none runs in this network; this is about one without flags"
	case len(x.running.Args) == 0:
		return fmt.Sprintf("pid %d, without flags", x.running.PID)
	}
	return fmt.Sprintf("pid %d, %s", x.running.PID, strings.Join(x.running.Args, " "))
}
