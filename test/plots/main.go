// Command plots draws the two pictures of README.md as SVG, from the output of make
// bench-readme: the CPU of a hit, and the lookups that fail in an outage.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// bar is a bar of a chart.
type bar struct {
	name  string
	value float64
}

// chart is a bar chart. The unit follows each value.
type chart struct {
	title, note, unit string
	decimals          int
	bars              []bar
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: plots BENCH.md OUTAGE.txt DIRECTORY")
	}
	cpu, err := read(args[0], `(?m)^\| (nodens|coredns|unbound|dnsmasq) \| [\d.]+ \| ([\d.]+) \|`, func(v float64) float64 { return v })
	if err != nil {
		return err
	}
	failed, err := read(args[1], `(?m)^\s*(?:\S+: )?(nodens|coredns|unbound)\s+hits\s+([\d.]+)%`, func(v float64) float64 { return 100 - v })
	if err != nil {
		return err
	}
	for name, c := range map[string]chart{
		"cpu.svg":    {"CPU per cache hit", "one core, loopback; shorter is better", " µs", 1, cpu},
		"outage.svg": {"Cached names that fail while the upstream is dead", "64 MiB of memory, 1,000 hits/s and 1,000 misses/s; shorter is better", " %", 0, failed},
	} {
		if err := os.WriteFile(args[2]+"/"+name, []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// read returns the name and the value of each match of pattern in a file.
func read(file, pattern string, convert func(float64) float64) ([]bar, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var bars []bar
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		name := m[1]
		if name == "coredns" {
			name = "CoreDNS"
		}
		bars = append(bars, bar{name, convert(v)})
	}
	if len(bars) < 2 {
		return nil, fmt.Errorf("%s: no figures", file)
	}
	return bars, nil
}

// Sizes in pixels.
const (
	width, left, right = 560, 90, 70
	top, row, barSize  = 58, 34, 20
)

// svg draws the chart. Its colours follow the reader's light or dark scheme.
func (c chart) svg() string {
	longest := 0.0
	for _, b := range c.bars {
		longest = max(longest, b.value)
	}
	var s strings.Builder
	height := top + row*len(c.bars) + 6
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
<style>
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .note { font-size: 12px; fill: #59636e }
.bar { fill: #8c959f } .own { fill: #0969da }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .note { fill: #9198a1 } .bar { fill: #6e7681 } .own { fill: #4493f8 } }
</style>
<text class="title" x="8" y="22">%s</text>
<text class="note" x="8" y="42">%s</text>
`, width, height, width, height, c.title, c.title, c.note)
	for i, b := range c.bars {
		y := top + row*i
		size := b.value / longest * (width - left - right)
		class := "bar"
		if b.name == "nodens" {
			class = "own"
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>
<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>
<text x="%.1f" y="%d">%.*f%s</text>
`, left-10, y+15, b.name, class, left, y, max(size, 2), barSize, float64(left)+max(size, 2)+8, y+15, c.decimals, b.value, c.unit)
	}
	s.WriteString("</svg>\n")
	return s.String()
}
