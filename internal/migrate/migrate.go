package migrate

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Config has the settings of a migration.
type Config struct {
	Image    string // of the new container
	Redirect string // RedirectOff, RedirectAuto or RedirectOn

	// Check returns the error with which the daemon would refuse these arguments and
	// this Corefile, or nil, and the warnings that it would log. It may be nil.
	Check func(Start) (warnings []error, err error)
}

// Start has the inputs of a daemon.
type Start struct {
	Args     []string
	Env      map[string]string
	Name     string // of the Corefile, for errors
	Corefile string
	Base     bool // it has node-cache's placeholders
}

// Report is the result of a migration, as text for people.
type Report struct {
	Same    []string // works as before
	Changed []string // what has changed, and why
	Refused []string // does not work
	LookAt  []string // needs a decision by the user
}

// ErrNothing means that no container of node-cache was found.
var ErrNothing = errors.New("no DaemonSet has a container of node-cache (an image k8s-dns-node-cache, or the argument -localip)")

// File is a YAML stream.
type File struct {
	Name string // for errors
	Text string
}

// Run migrates the documents of all files and joins them to one stream. The output
// is valid YAML with any Report. Do not apply it if the Report has refusals.
func Run(cfg Config, files ...File) (out string, r *Report, err error) {
	var docs documents
	for _, f := range files {
		more, err := split(f.Name, f.Text)
		if err != nil {
			return "", nil, err
		}
		if len(docs) > 0 && more[0].separator == "" {
			more[0].separator = "---\n"
		}
		docs = append(docs, more...)
	}
	m := &migration{Config: cfg, documents: docs, Report: &Report{}}
	m.exported()
	var found []*container
	for _, o := range m.objects("DaemonSet") {
		for _, c := range nodeCaches(o, found) {
			found = append(found, c)
			m.daemonSet(o, c)
		}
	}
	if len(found) == 0 {
		for _, f := range files {
			if hint := templateHint(f.Text); hint != "" {
				return "", nil, fmt.Errorf("%w%s", ErrNothing, hint)
			}
		}
		return "", nil, ErrNothing
	}
	if names := docs.untouched(); len(names) > 0 {
		m.same("not changed: %s", strings.Join(names, ", "))
	}
	out, err = docs.join()
	return out, m.Report, err
}

// migration is one run.
type migration struct {
	Config
	documents
	*Report
}

func (r *Report) same(format string, a ...any) {
	r.Same = append(r.Same, fmt.Sprintf(format, a...))
}

func (r *Report) changed(format string, a ...any) {
	r.Changed = append(r.Changed, fmt.Sprintf(format, a...))
}

func (r *Report) refused(format string, a ...any) {
	r.Refused = append(r.Refused, fmt.Sprintf(format, a...))
}

func (r *Report) lookAt(format string, a ...any) {
	r.LookAt = append(r.LookAt, fmt.Sprintf(format, a...))
}

// Write prints the report.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, s := range []struct {
		heading string
		lines   []string
	}{
		{"Refused: does not work as it is", r.Refused},
		{"Changes", r.Changed},
		{"Check yourself", r.LookAt},
		{"Stays the same", r.Same},
	} {
		if len(s.lines) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s:\n", s.heading)
		for _, l := range s.lines {
			fmt.Fprintf(&b, "  - %s\n", l)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
