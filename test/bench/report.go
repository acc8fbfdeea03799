package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
)

// report prints the figures as Markdown.
func (b *bench) report(w io.Writer, f *figures) {
	fmt.Fprintf(w, "%s, %s; servers on CPU %d, generator and upstream on CPU %d.\n", machine(), runtime.Version(), b.serverCPU, b.generatorCPU)
	fmt.Fprintf(w, "%d names, medians of %d alternating rounds of %v. Other load on these CPUs affects them: compare only figures of one run.\n\n", b.names, b.rounds, b.length)
	b.reportHits(w, f)
	b.reportPaced(w, f)
	b.reportRest(w, f)
	b.reportSearch(w, f.search)
	b.reportStatistics(w, f.statistics)
	b.reportChecks(w, f)
}

func (b *bench) reportHits(w io.Writer, f *figures) {
	var rows [][]string
	a := f.hits[mixA]
	for _, s := range b.servers {
		row := []string{strings.TrimSpace(s.name + " " + s.version), number(a.median(s.name, rate), 0), number(a.median(s.name, cpu), 2)}
		if s.echo() {
			row = append(row, "–", "–", "–", "–")
		} else {
			row = append(row, number(f.hits[mixB].median(s.name, cpu), 2), number(f.hits[mixB].ratio(s.name, a, s.name, cpu), 2),
				number(f.hits[mixC].median(s.name, cpu), 2), number(f.hits[mixC].ratio(s.name, f.hits[mixB], s.name, cpu), 2))
		}
		for _, peer := range []string{b.floor(), unbound, coreDNS} {
			row = append(row, number(a.ratio(s.name, a, peer, cpu), 2))
		}
		rows = append(rows, append(row, a.saturated(s.name)))
	}
	fmt.Fprintf(w, "Hits, %d queries in flight. A: all names exist; B: 70%% do not. C: these are below a name that does not exist.\n\n", hitWindow)
	table(w, []string{"server", "hits/s A", "CPU µs per hit A", "B", "B / A", "C", "C / B", "A / echo", "A / unbound", "A / CoreDNS", "saturated"}, rows)
}

func (b *bench) reportPaced(w io.Writer, f *figures) {
	head := []string{"server"}
	for _, r := range rates {
		head = append(head, fmt.Sprintf("CPU µs at %d/s", r), "p50 / p99 µs")
	}
	var rows [][]string
	for _, s := range b.servers {
		row := []string{s.name}
		for _, p := range f.paced {
			row = append(row, number(p.median(s.name, cpu), 1), number(p.median(s.name, p50), 0)+" / "+number(p.median(s.name, p99), 0))
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(w, "Hits at fixed rates, mix A, CPU per query and latency.\n\n")
	table(w, head, rows)
	last := f.paced[len(rates)-1]
	fmt.Fprintf(w, "At %d/s the p99 of the %s is %s of CoreDNS's: the share of the kernel and of other load.\n\n",
		rates[len(rates)-1], b.floor(), number(last.ratio(b.floor(), last, coreDNS, p99), 2))
}

func (b *bench) reportRest(w io.Writer, f *figures) {
	var rows [][]string
	for _, s := range b.servers {
		row := []string{s.name, number(s.start.Seconds()*1000, 0), number(f.idle[s.name]*100, 4)}
		if s.echo() {
			rows = append(rows, append(row, "–", "–", number(f.after[s.name].resident/1e6, 0), "–"))
			continue
		}
		rows = append(rows, append(row, number(f.misses.median(s.name, cpu), 1), number(f.misses.median(s.name, p99), 0),
			number(f.after[s.name].resident/1e6, 0), number(b.perName(f, s.name, func(m memory) float64 { return m.resident }), 0)))
	}
	fmt.Fprintf(w, "Time from start to the first answer; CPU without queries, over %v; misses, %d in flight; resident memory with %d names of mix A and %d of B (dnsmasq allocates all at the start).\n\n", b.idle, missWindow, b.filled, b.names)
	table(w, []string{"server", "start ms", "idle % of a core", "CPU µs per miss", "p99 µs", "RSS MB", "RSS B per added name"}, rows)
	fmt.Fprintf(w, "nodens with %d names: %.0f MB resident, %.0f B per added name in total (nodens_cache_bytes %.0f MB); a hit costs %s× of one among %d names (%s and %s µs); the longest pause of the garbage collector was %s µs.\n\n",
		b.grown, f.last.resident/1e6, b.perGrown(f), f.last.cache/1e6,
		number(growth(f), 2), fewNames, number(f.grown[1].median(nodens, cpu), 2), number(f.grown[0].median(nodens, cpu), 2), number(f.pause*1e6, 0))
}

// perGrown is the memory of each name that only nodens caches, in bytes.
func (b *bench) perGrown(f *figures) float64 {
	return (f.last.resident - f.after[nodens].resident) / float64(b.grown-b.filled)
}

// perName is the memory of each name that the misses added, in bytes.
func (b *bench) perName(f *figures, server string, figure func(memory) float64) float64 {
	return (figure(f.after[server]) - figure(f.before[server])) / float64(b.filled-b.names)
}

func growth(f *figures) float64 { return f.grown[1].ratio(nodens, f.grown[0], nodens, cpu) }

// reportChecks reports the replies, which were all checked for question, rcode
// and number of records.
func (b *bench) reportChecks(w io.Writer, f *figures) {
	hits := slices.Concat(f.hits[:], f.paced[:], f.grown[:])
	all := append(slices.Clone(hits), f.misses)
	var rows [][]string
	for _, s := range b.servers {
		sum := func(phases []phase, count func(sample) int64) string {
			var n int64
			for _, p := range phases {
				n += p.total(s.name, count)
			}
			return fmt.Sprint(n)
		}
		rows = append(rows, []string{s.name,
			sum(all, func(s sample) int64 { return int64(s.Answers) }),
			sum(all, func(s sample) int64 { return int64(s.Wrong) }),
			sum(all, func(s sample) int64 { return int64(s.Lost) }),
			sum(hits, func(s sample) int64 { return s.asked }),
			sum([]phase{f.misses}, func(s sample) int64 { return s.asked })})
	}
	fmt.Fprintf(w, "Answers, each checked for question, rcode and ANCOUNT (of the echo: the question), and queries at the upstream.\n\n")
	table(w, []string{"server", "right", "wrong", "lost", "upstream in hit rounds", "in miss rounds"}, rows)
}

func table(w io.Writer, head []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	fmt.Fprintf(w, "|---%s\n", strings.Repeat("|---", len(head)-1)+"|")
	for _, r := range rows {
		line(r)
	}
	fmt.Fprintln(w)
}

// number formats a figure, and a dash for one that was not measured.
func number(v float64, decimals int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return fmt.Sprintf("%.*f", decimals, v)
}
