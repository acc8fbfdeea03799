package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/top"
)

// Results of doctor. After a fault or a warning, the exit status is 1. If doctor
// found none but could not examine everything, the exit status is 2.
var (
	errFindings   = errors.New("doctor")
	errUnexamined = errors.New("doctor could not examine everything")
)

// doctorFlags are doctor's own flags.
type doctorFlags struct {
	pods     []string
	podGiven bool
	format   cmdline.Output
	large    string
	timeout  time.Duration
}

const doctorHelp = `usage: nodens doctor [-pod POD]... [-o text|json] [the daemon's flags]

Examines how queries reach nodens, from the node and from a pod. Without the
daemon's flags, doctor uses flags, files and environment of the nodens that runs in
the same network: on the host or in a container.

  -pod POD       a process ID, the path of a network namespace, or a prefix of a
                 container's ID or a pod's UID; may be repeated; "none" for no pod
                 (default: any one pod of the node)
  -o FORMAT      text or json (default text)
  -large NAME    a name with large TXT records, to check whether large replies
                 arrive (default: the root's DNSKEY)
  -wait DURATION timeout of one of the two tries (default 2s)

Exit status: 0 nothing wrong, notes at most; 1 a fault or a warning; 2 a wrong
command line, or no finding but something could not be examined.
`

func doctorCommand(e env) *cli.Command {
	f, d := newFlags(), new(doctorFlags)
	own := d.set()
	return e.Command("doctor", "", "examine how queries of the node and of a pod reach nodens", doctorHelp,
		append(cmdline.Flags(own), cmdline.Flags(f.set())...), func(ctx context.Context, c *cli.Command) error {
			if d.timeout <= 0 {
				return e.WrongUsage("-wait %v: want a duration above 0", d.timeout)
			}
			x, err := newExamined(e, f, true), error(nil)
			if !cmdline.Given(c, own) {
				x, err = adopt(e)
			}
			if err != nil {
				return err
			}
			return examine(ctx, e, x, d)
		})
}

// set declares doctor's own flags.
func (d *doctorFlags) set() *flag.FlagSet {
	fs := d.format.Set("doctor")
	fs.Func("pod", "examine the view of this `pod`", func(s string) error {
		d.podGiven = true
		if s != "none" {
			d.pods = append(d.pods, s)
		}
		return nil
	})
	fs.StringVar(&d.large, "large", "", "query this `name` to check whether large replies arrive")
	fs.DurationVar(&d.timeout, "wait", 2*time.Second, "`timeout` of one of the two tries")
	return fs
}

// examine prints doctor's report.
func examine(ctx context.Context, e env, x examined, d *doctorFlags) error {
	c := x.DoctorConfig(func(err error) { fmt.Fprintln(e.Stderr, err) })
	c.Pods, c.LargeName, c.Timeout = d.pods, d.large, d.timeout
	if !d.podGiven {
		c.Pods = []string{doctor.Auto}
	}
	report := doctor.Examine(ctx, c)
	var err error
	if d.format.JSON {
		err = cmdline.WriteJSON(e.Stdout, report)
	} else {
		err = writeReport(e.Stdout, x, report)
	}
	switch worst := report.Worst(); {
	case err != nil:
		return err
	case worst == doctor.Fault || worst == doctor.Warning:
		return fmt.Errorf("%w: %s", errFindings, report.Summary())
	case len(report.Unexamined) > 0:
		return errUnexamined
	}
	return nil
}

// writeReport writes a report as text. Names in it come from the network, so it replaces
// characters that could control the terminal.
func writeReport(w io.Writer, x examined, r *doctor.Report) error {
	var text strings.Builder
	fmt.Fprintf(&text, "daemon: %v\n", x)
	if err := r.Write(&text); err != nil {
		return err
	}
	_, err := io.WriteString(w, top.PrintableLines(text.String()))
	return err
}
