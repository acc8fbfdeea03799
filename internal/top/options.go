package top

import (
	"context"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/state"
)

// Options configure the output.
type Options struct {
	JSON, Once bool
	Window     string // one of state.Windows
}

// Set registers -once and -window.
func (o *Options) Set(fs *flag.FlagSet) {
	o.Window = state.Windows()[0]
	fs.BoolVar(&o.Once, "once", false, "print the state once and exit")
	fs.Func("window", "show the lists of the last `period`: 1m, 5m or 60m (default 1m)", o.SetWindow)
}

// SetWindow sets the window from a flag.
func (o *Options) SetWindow(s string) error {
	if !slices.Contains(state.Windows(), s) {
		return errors.New("want " + strings.Join(state.Windows(), ", "))
	}
	o.Window = s
	return nil
}

// printedRows is the number of rows of each list that Print writes.
const printedRows = 10

// Run shows the source on out. If out is not a terminal, it prints once.
func (o Options) Run(ctx context.Context, out io.Writer, source Source) error {
	if !o.JSON && !o.Once && IsTerminal(out) {
		return Show(ctx, source, o.Window)
	}
	s, err := First(ctx, source)
	if err != nil {
		return err
	}
	if !o.JSON {
		return Print(out, s, o.Window, printedRows)
	}
	return cmdline.WriteJSON(out, s)
}
