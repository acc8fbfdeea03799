package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
)

// The marks around the summary in the file of -readme.
const (
	beginMark = "<!-- the output of make bench-readme begins -->\n"
	endMark   = "<!-- the output of make bench-readme ends -->\n"
)

// updateReadme writes the summary into the file of -readme.
func (b *bench) updateReadme(f *figures) error {
	text, err := os.ReadFile(b.readme)
	if err != nil {
		return err
	}
	var summary bytes.Buffer
	b.summary(&summary, f)
	if text, err = between(text, summary.Bytes()); err != nil {
		return fmt.Errorf("%s: %w", b.readme, err)
	}
	return os.WriteFile(b.readme, text, 0o644)
}

// between replaces the text between the marks.
func between(text, summary []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(text, []byte(beginMark))
	_, after, closed := bytes.Cut(rest, []byte(endMark))
	if !ok || !closed {
		return nil, fmt.Errorf("no lines %q and %q", beginMark, endMark)
	}
	return bytes.Join([][]byte{before, []byte(beginMark), summary, []byte(endMark), after}, nil), nil
}

// summary prints the figures behind a picture of README.md.
func (b *bench) summary(w io.Writer, f *figures) {
	fmt.Fprintf(w, "%s, %s, all on loopback, each server pinned to one CPU; medians of %d alternating rounds of %v. Only the ratios apply to other machines.\n\n",
		machine(), runtime.Version(), b.rounds, b.length)
	a, fast := f.hits[mixA], f.paced[len(rates)-1]
	var rows [][]string
	for _, s := range b.servers {
		row := []string{s.name, number(a.median(s.name, rate), 0), number(a.median(s.name, cpu), 2), "–",
			number(fast.median(s.name, cpu), 1), number(fast.median(s.name, p99), 0), "–", "–", number(s.start.Seconds()*1000, 0)}
		if !s.echo() {
			row[3] = number(f.hits[mixB].median(s.name, cpu), 2)
			row[6] = number(f.misses.median(s.name, cpu), 1)
			row[7] = number(f.after[s.name].resident/1e6, 0)
		}
		rows = append(rows, row)
	}
	table(w, []string{"server", "hits/s on one CPU", "CPU µs per hit", "70% NXDOMAIN", "CPU µs at 5,000/s", "p99 µs at 5,000/s",
		"CPU µs per miss", fmt.Sprintf("MB, %d names", b.filled), "start ms"}, rows)
	fmt.Fprintf(w, "A hit of nodens takes %s of the CPU of an echo in C, %s of unbound's, %s of CoreDNS's. With %d names a hit takes %s of the CPU of a hit with %d, and each name takes %s bytes of memory in total. An idle nodens takes %s%% of a CPU.\n",
		number(a.ratio(nodens, a, b.floor(), cpu), 2), number(a.ratio(nodens, a, unbound, cpu), 2), number(a.ratio(nodens, a, coreDNS, cpu), 2),
		b.grown, number(growth(f), 2), fewNames, number(b.perGrown(f), 0), number(f.idle[nodens]*100, 3))
}
