package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nodens-dns/nodens/internal/state"
)

// list is one table. The first numbers columns are right-aligned.
type list struct {
	name    string
	numbers int
	columns []string
	rows    [][]string
}

// lists returns the tables of s. The first four are of window, a key of State.Top.
func lists(s *state.State, window string) []list {
	t := s.Top[window]
	return []list{
		{"names", 2, []string{"QUERIES/S", "SHARE", "NAME", "ZONE"}, frequent(t, t.Names)},
		{"clients", 2, []string{"QUERIES/S", "SHARE", "CLIENT", "POD"}, frequent(t, t.Clients)},
		{"nxdomain", 2, []string{"QUERIES/S", "SHARE", "NAME", "ZONE"}, frequent(t, t.NXDomain)},
		{"slow", 3, []string{"WAITED", "MEAN", "LOOKUPS", "NAME", "ZONE"}, slow(t.Slow)},
		zones(s.Zones),
		upstreams(s.Upstreams),
	}
}

// frequent returns the rates of entries in the part of the window that t covers.
func frequent(t state.TopLists, entries []state.Entry) (rows [][]string) {
	for _, e := range entries {
		rows = append(rows, []string{rate(e.Count, t.Covers), percent(e.Count, t.Queries), e.Key, cmp.Or(e.Zone, e.Label)})
	}
	return rows
}

func slow(entries []state.Entry) (rows [][]string) {
	for _, e := range entries {
		rows = append(rows, []string{seconds(e.Seconds), seconds(e.Seconds / float64(max(e.Count, 1))), fmt.Sprint(e.Count), e.Key, e.Zone})
	}
	return rows
}

func zones(all []state.Zone) list {
	l := list{"zones", 8, []string{"QUERIES", "HITS", "FAILED", "P99 HIT", "P50 MISS", "P99 MISS", "ENTRIES", "CACHE", "ZONE"}, nil}
	for _, z := range all {
		l.rows = append(l.rows, []string{fmt.Sprint(z.Requests), percent(z.Hits, z.Hits+z.Misses), fmt.Sprint(z.Failures),
			quantile(z.HitLatency, z.HitLatency.P99), quantile(z.MissLatency, z.MissLatency.P50), quantile(z.MissLatency, z.MissLatency.P99),
			fmt.Sprint(z.CacheEntries), size(z.CacheBytes), z.Name})
	}
	return l
}

func upstreams(all []state.Upstream) list {
	l := list{"upstreams", 4, []string{"QUERIES", "FAILED", "P50", "P99", "STATE", "UPSTREAM", "PROTOCOL", "ZONE"}, nil}
	for _, u := range all {
		health := "up"
		if !u.Healthy {
			health = "down"
		}
		l.rows = append(l.rows, []string{fmt.Sprint(u.Queries), fmt.Sprint(u.Failures), quantile(u.Latency, u.Latency.P50), quantile(u.Latency, u.Latency.P99),
			health, u.Address, u.Protocol, u.Zone})
	}
	return l
}

// filtered returns the rows that contain text. It ignores the case.
func (l list) filtered(text string) list {
	l.rows = slices.DeleteFunc(slices.Clone(l.rows), func(row []string) bool {
		return !strings.Contains(strings.ToLower(strings.Join(row, " ")), strings.ToLower(text))
	})
	return l
}

// lines returns the header and the rows in aligned columns. It replaces characters that
// could control the terminal.
func (l list) lines() []string {
	table := append([][]string{l.columns}, l.rows...)
	width := make([]int, len(l.columns))
	for _, row := range table {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	lines := make([]string, len(table))
	for n, row := range table {
		for i, cell := range row {
			if i >= l.numbers {
				width[i] = -max(width[i], -width[i])
			}
			lines[n] += fmt.Sprintf("%*s  ", width[i], cell)
		}
		lines[n] = Printable(strings.TrimRight(lines[n], " "))
	}
	return lines
}

// Printable replaces the characters of s that could change the terminal, such as those
// of escape sequences and new lines.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// PrintableLines is Printable for each line of text.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n")
}

func rate(count uint64, over float64) string {
	if over <= 0 {
		return "-"
	}
	if r := float64(count) / over; r < 100 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", float64(count)/over)
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

func quantile(l state.Latency, value float64) string {
	if l.Count == 0 {
		return "-"
	}
	return seconds(value)
}

// seconds formats a duration with at most three digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// size formats a number of bytes.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.0fK", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1fM", float64(n)/(1<<20))
}
