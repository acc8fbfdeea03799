package config

import (
	"errors"
	"strconv"
	"time"
)

// FastpathMode says whether the kernel answers queries of pods from a copy of the
// cache.
type FastpathMode string

// The modes. Auto is on where the kernel and the privileges allow it.
const (
	FastpathOff  FastpathMode = "off"
	FastpathAuto FastpathMode = "auto"
	FastpathOn   FastpathMode = "on"
)

// Defaults and bounds of the options.
const (
	DefaultFastpathEntries = 8192
	MinFastpathEntries     = 64
	MaxFastpathEntries     = 1 << 18
	DefaultFastpathLease   = 5 * time.Second
	MinFastpathLease       = time.Second
	MaxFastpathLease       = 30 * time.Second
)

// Fastpath is the fastpath directive. It applies to the process, not to its block,
// and a Corefile has at most one.
type Fastpath struct {
	File    string
	Line    int
	Mode    FastpathMode
	Entries int           // in the kernel's table
	Lease   time.Duration // for which the kernel answers a client that nodens has heard
	OptOut  []PodName
}

// parseFastpath reads fastpath [auto|on|off] and its options.
func parseFastpath(b *Block, s statement) error {
	if err := s.arity(0, 1, "[auto|on|off]"); err != nil {
		return err
	}
	f := &Fastpath{File: s.file, Line: s.line, Mode: FastpathAuto, Entries: DefaultFastpathEntries, Lease: DefaultFastpathLease}
	if len(s.args) == 1 {
		mode, err := oneOf(FastpathAuto, FastpathOn, FastpathOff)(s.args[0].text)
		if err != nil {
			return s.fail(err)
		}
		f.Mode = mode
	}
	b.Fastpath = f
	return s.eachOption(func(name string) bool { return name == "opt_out" }, f.parseOption)
}

func (f *Fastpath) parseOption(o statement) error {
	switch o.text {
	case "entries":
		return oneArg(o, "NUMBER", &f.Entries, func(text string) (int, error) {
			return parseNumber("number of entries", text, MinFastpathEntries, MaxFastpathEntries)
		})
	case "lease":
		return oneArg(o, "DURATION", &f.Lease, durationWithin(MinFastpathLease, MaxFastpathLease))
	case "opt_out":
		return eachArg(o, "NAMESPACE[/POD]…", &f.OptOut, parsePodName)
	}
	return o.unknown()
}

// checkFastpaths refuses a second fastpath directive.
func checkFastpaths(blocks []*Block) error {
	var first *Fastpath
	var errs []error
	for _, b := range blocks {
		f := b.Fastpath
		if f == nil {
			continue
		}
		if first == nil {
			first = f
			continue
		}
		before, at := token{file: first.File, line: first.Line}, token{file: f.File, line: f.Line}
		errs = append(errs, &Error{File: f.File, Line: f.Line, Directive: "fastpath", Err: reason(
			"given twice in the Corefile, first %s; it applies to the process, so write it in one block", before.seenFrom(at))})
	}
	return errors.Join(errs...)
}

// Fastpath returns the fastpath directive. Without one the mode is FastpathOff.
func (c *Config) Fastpath() Fastpath {
	for _, b := range c.Blocks {
		if b.Fastpath != nil {
			return *b.Fastpath
		}
	}
	return Fastpath{Mode: FastpathOff, Entries: DefaultFastpathEntries, Lease: DefaultFastpathLease}
}

func (f *Fastpath) describe() []string {
	return []string{
		string(f.Mode), "entries " + strconv.Itoa(f.Entries), "lease " + durationText(f.Lease), "opt_out " + listOr(f.OptOut, "none"),
	}
}
