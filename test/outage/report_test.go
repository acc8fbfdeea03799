package outage

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// report is a table with a row for each drill of a subject.
type report []string

// add appends the row of r. A failed result may lack values.
func (rows *report) add(d drill, subject string, length time.Duration, r *result, failed bool) {
	verdict := ""
	switch {
	case failed:
		verdict = "FAILED"
	case subject == "nodens" && float64(r.misses.sent) < 0.95*float64(d.load.rate)*length.Seconds():
		verdict = "met, with less load"
	case subject == "nodens":
		verdict = "met"
	}
	settled := "-"
	if r.settled > 0 {
		settled = fmt.Sprintf("%.0f s", r.settled.Seconds())
	}
	*rows = append(*rows, fmt.Sprintf("%d MiB\t%s\t%v\t%s\t%v\t%.2f\t%.2f of %d\t%.1f\t%.2f s\t%v\t%d ms\t%d\t%d/%d/%d\t%s\t%d ms\t%s\t",
		d.limit>>20, d.name, d.load, subject, length, r.hits.share(), r.misses.share(), r.misses.sent, r.misses.good(), r.misses.longest.Seconds(), r.dropped, r.misses.pause.Milliseconds(),
		r.kills, r.before.memory>>20, r.peak>>20, r.after.memory>>20, settled, r.back.Milliseconds(), verdict))
}

func (rows report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(w, "limit\tupstream\tmisses\tsubject\tlength\thits %\tmisses answered %\tgood %\tlongest\tdropped: queries+replies+others\tload paused\tOOM\tMiB before/peak/after\tnormal after\tback in\tgoals\t")
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	_ = w.Flush() // to memory
	return b.String()
}
