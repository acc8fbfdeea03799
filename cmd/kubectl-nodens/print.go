package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/top"
)

// format is the value of -o: empty, wide, json or yaml.
type format string

// add registers -o.
func (f *format) add(cmd *cobra.Command) {
	cmd.Flags().VarP(f, "output", "o", "output: json, yaml or wide")
}

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "string" }
func (f *format) Set(s string) error {
	switch *f = format(s); s {
	case "", "wide", "json", "yaml":
		return nil
	}
	return fmt.Errorf("want json, yaml or wide")
}

// data reports whether v is printed as data instead of text.
func (f format) data() bool { return f == "json" || f == "yaml" }

// print writes v as JSON or YAML.
func (f format) print(w io.Writer, v any) error {
	if f == "json" {
		return cmdline.WriteJSON(w, v)
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// table writes rows in columns.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = top.Printable(cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// count returns n and the noun, in the plural unless n is 1.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// sentence returns the text of an error on one line, for a table.
func sentence(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
