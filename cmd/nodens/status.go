package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
)

// errIncomplete: the exit status of the status command is 1.
var errIncomplete = errors.New("the host is not set up as wanted")

const statusHelp = `usage: nodens status [-o text|json] [the daemon's flags]

Prints what a daemon has set up on the host, its limits, and whether everything that
it was asked to set up is there. Without the daemon's flags, status uses flags, files
and environment of the nodens that runs in the same network: on the host or in a
container.

  -o FORMAT      text or json (default text)

Exit status: 0 complete; 1 something is missing, no daemon runs, or an error; 2 a wrong
command line.
`

// statusResult is the output of status -o json.
type statusResult struct {
	OK    bool         `json:"ok"`
	State []statusLine `json:"state"`
}

// statusLine is the state of one object.
type statusLine struct {
	Object string `json:"object"`
	State  string `json:"state"`
}

func statusCommand(e env) *cli.Command {
	f, format := newFlags(), new(cmdline.Output)
	own := format.Set("status")
	return e.Command("status", "", "print what a daemon has set up on the host, and whether it is complete", statusHelp,
		append(cmdline.Flags(own), cmdline.Flags(f.set())...), func(ctx context.Context, c *cli.Command) error {
			x, err := newExamined(e, f, true), error(nil)
			var out bytes.Buffer
			absent := false
			if !cmdline.Given(c, own) {
				if x, err = adopt(e); err != nil {
					return err
				}
				absent = x.running.PID == 0
				fmt.Fprintf(&out, "daemon\t%v\n", x)
			}
			complete, err := x.PrintStatus(ctx, &out, func(err error) { fmt.Fprintln(e.Stderr, err) })
			complete = complete && !absent
			if format.JSON {
				err = errors.Join(err, cmdline.WriteJSON(e.Stdout, statusResult{err == nil && complete, lines(out.String())}))
			} else if _, werr := out.WriteTo(e.Stdout); werr != nil {
				err = errors.Join(err, werr)
			}
			if err == nil && !complete {
				return errIncomplete
			}
			return err
		})
}

// lines splits the lines of status, OBJECT TAB STATE.
func lines(text string) []statusLine {
	var all []statusLine
	for line := range strings.Lines(text) {
		object, state, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, statusLine{object, state})
	}
	return all
}
