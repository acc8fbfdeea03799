package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/doctor"
)

// Results of doctor. After a fault or a warning, the exit status is 1. If doctor
// found none but could not examine everything, the exit status is 2.
var (
	errFindings   = errors.New("doctor")
	errUnexamined = errors.New("doctor could not examine everything")
)

// doctorFlags are the daemon's flags and doctor's own.
type doctorFlags struct {
	*flags
	pods    []string
	json    bool
	large   string
	timeout time.Duration

	daemonGiven bool // the command line has flags of the daemon
}

const doctorUsage = `usage: nodens doctor [-pod POD]... [-o text|json] [the daemon's flags]

Examines how queries reach nodens, from the node and from a pod. Without the
daemon's flags, doctor uses those of the nodens that runs with the same files and
network: on the host, or in the same container.

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

// examine is the doctor command.
func examine(ctx context.Context, e env) error {
	f, err := readDoctorFlags(e)
	if err == nil && !f.daemonGiven {
		f, err = f.adopt(&e, e.args[1:])
	}
	if err != nil {
		return helpIsNoError(err)
	}
	f.resolve()
	f.Getenv = e.getenv
	c := f.DoctorConfig(func(err error) { fmt.Fprintln(e.stderr, err) })
	c.Pods, c.LargeName, c.Timeout = f.pods, f.large, f.timeout
	report := doctor.Examine(ctx, c)
	if f.json {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.Write(e.stdout)
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

// readDoctorFlags parses the daemon's flags and doctor's own.
func readDoctorFlags(e env) (*doctorFlags, error) {
	d := &doctorFlags{flags: &flags{Options: defaults()}}
	fs := d.set()
	d.setOwn(fs)
	printHelp := func() { fmt.Fprint(e.stderr, doctorUsage) }
	if err := parse(fs, e.args[1:], e.stderr, printHelp); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 || d.timeout <= 0 {
		printHelp()
		return nil, errUsage
	}
	own := flag.NewFlagSet("", flag.ContinueOnError)
	new(doctorFlags).setOwn(own)
	podGiven := false
	fs.Visit(func(f *flag.Flag) {
		podGiven = podGiven || f.Name == "pod"
		d.daemonGiven = d.daemonGiven || own.Lookup(f.Name) == nil
	})
	if !podGiven {
		d.pods = []string{doctor.Auto}
	}
	return d, nil
}

// adopt returns doctor's flags together with those of the daemon that runs here. It
// makes e.getenv fall back to the daemon's environment.
func (d *doctorFlags) adopt(e *env, own []string) (*doctorFlags, error) {
	running, found, err := doctor.FindDaemon("/proc")
	if err != nil {
		return d, err
	}
	if !found {
		fmt.Fprintln(e.stderr, "no nodens runs with the same files and network; doctor examines a daemon without flags")
		return d, nil
	}
	with := *e
	with.args = slices.Concat([]string{"doctor"}, running.Args, own)
	getenv := e.getenv
	e.getenv = func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return running.Env[name]
	}
	return readDoctorFlags(with)
}

// setOwn declares doctor's own flags.
func (d *doctorFlags) setOwn(fs *flag.FlagSet) {
	fs.Func("pod", "", func(s string) error {
		if s != "none" {
			d.pods = append(d.pods, s)
		}
		return nil
	})
	fs.StringVar(&d.large, "large", "", "")
	fs.DurationVar(&d.timeout, "wait", 2*time.Second, "")
	fs.Func("o", "", func(s string) error {
		d.json = s == "json"
		if s != "json" && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
}
