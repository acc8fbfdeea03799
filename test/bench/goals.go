package main

import (
	"errors"
	"fmt"
	"io"
)

// errBelowGoals is the error if a goal is missed. The table of goals has the
// details.
var errBelowGoals = errors.New("below the goals")

// goal is a figure and its maximum.
type goal struct {
	what        string
	have, limit float64
}

// met is false if the figure was not measured (NaN).
func (g goal) met() bool { return g.have <= g.limit }

// goals are those of user space.
func (b *bench) goals(f *figures) []goal {
	a, fast := f.hits[mixA], f.paced[len(rates)-1]
	floor, searched := b.floor(), f.search[nodens]
	saturated, busiest := f.statistics.hits[0], f.statistics.hits[len(statisticsRates)-1]
	return []goal{
		{"CPU per hit / " + floor, a.ratio(nodens, a, floor, cpu), 1.4},
		{"CPU per hit / unbound", a.ratio(nodens, a, unbound, cpu), 0.8},
		{"CPU per hit / CoreDNS", a.ratio(nodens, a, coreDNS, cpu), 1.0 / 6},
		{"CPU per hit, mix B / A", f.hits[mixB].ratio(nodens, a, nodens, cpu), 1.05},
		{"CPU per hit, mix C / B", f.hits[mixC].ratio(nodens, f.hits[mixB], nodens, cpu), 1.05},
		{"cluster.local queries upstream per external lookup", searched.all, 0.2},
		{fmt.Sprintf("the same after %v", searchCold), searched.warm, 0.15},
		{"first lookup of an external name / CoreDNS", searched.p50.Seconds() / f.search[coreDNS].p50.Seconds(), 0.5},
		{"CPU per hit with statistics of queries / without", saturated.ratio(nodens, saturated, uncounted, cpu), 1.02},
		{"the same at 15,000/s", busiest.ratio(nodens, busiest, uncounted, cpu), 1.02},
		{"CPU at 200,000/s with nodens top / without", f.statistics.view.ratio(viewed, f.statistics.view, nodens, cpu), 1.02},
		{"wrong answers on the search path", float64(searched.wrong), 0},
		{"CPU at 5,000/s / " + floor, fast.ratio(nodens, fast, floor, cpu), 1.4},
		{"p99 at 5,000/s / CoreDNS", fast.ratio(nodens, fast, coreDNS, p99), 1.0 / 3},
		{"CPU per miss / CoreDNS", f.misses.ratio(nodens, f.misses, coreDNS, cpu), 0.6},
		{"p99 of a miss / CoreDNS", f.misses.ratio(nodens, f.misses, coreDNS, p99), 1},
		{fmt.Sprintf("CPU per hit, %d names / %d", b.grown, fewNames), growth(f), 1.5},
		{"resident bytes per A answer, total", b.perGrown(f), 300},
		{"idle, share of a core", f.idle[nodens], 0.001},
		{"start to the first answer, ms", b.servers[0].start.Seconds() * 1000, 50},
	}
}

// floor is the server that hits are compared with: the echo in C, or in Go if
// there is no C compiler.
func (b *bench) floor() string {
	for _, s := range b.servers {
		if s.name == cEcho {
			return cEcho
		}
	}
	return goEcho
}

// check prints the goals and returns errBelowGoals if one is missed.
func check(w io.Writer, goals []goal) error {
	var rows [][]string
	var err error
	for _, g := range goals {
		verdict := "met"
		if !g.met() {
			verdict, err = "**missed**", errBelowGoals
		}
		rows = append(rows, []string{g.what, number(g.have, 4), number(g.limit, 4), verdict})
	}
	fmt.Fprintf(w, "Goals of nodens. A figure that was not measured misses its goal.\n\n")
	table(w, []string{"goal", "measured", "at most", ""}, rows)
	return err
}
