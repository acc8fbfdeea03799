package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// sample is one round of one server.
type sample struct {
	cpu       float64 // of the server per answer, µs
	rate      float64 // answers per second
	p50, p99  float64 // latency, µs
	server    float64 // share of the time in which the server ran
	generator float64 // the same for the generator
	asked     int64   // queries at the upstream
	result
}

// newSample computes the figures of a round from the CPU times of the server and
// the generator.
func newSample(r result, server, generator time.Duration, asked int64) sample {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return sample{
		cpu: us(server) / float64(r.Answers), rate: float64(r.Answers) / r.Wall.Seconds(),
		p50: us(r.P50), p99: us(r.P99),
		server: float64(server) / float64(r.Wall), generator: float64(generator) / float64(r.Wall),
		asked: asked, result: r,
	}
}

// Figures of a sample, for medians.
func cpu(s sample) float64  { return s.cpu }
func rate(s sample) float64 { return s.rate }
func p50(s sample) float64  { return s.p50 }
func p99(s sample) float64  { return s.p99 }

// phase is the rounds of one kind of load: a sample for each server.
type phase []map[string]sample

// median is the median over the rounds of a server's figure, NaN if there are
// none.
func (p phase) median(server string, figure func(sample) float64) float64 {
	var v []float64
	for _, round := range p {
		if s, ok := round[server]; ok {
			v = append(v, figure(s))
		}
	}
	return median(v)
}

// ratio is the median over the rounds of the ratio of a's figure in this phase to
// b's figure in the other phase, in the same round. Other load on the machine
// slows both alike. It is NaN if either was not measured.
func (p phase) ratio(a string, other phase, b string, figure func(sample) float64) float64 {
	return median(p.ratios(a, other, b, figure))
}

// ratios are the ratios of the rounds, from the smallest.
func (p phase) ratios(a string, other phase, b string, figure func(sample) float64) (v []float64) {
	for i := range min(len(p), len(other)) {
		sa, oka := p[i][a]
		sb, okb := other[i][b]
		if oka && okb {
			v = append(v, figure(sa)/figure(sb))
		}
	}
	slices.Sort(v)
	return v
}

// total adds up a count over the rounds of a server.
func (p phase) total(server string, count func(sample) int64) int64 {
	var sum int64
	for _, round := range p {
		sum += count(round[server])
	}
	return sum
}

// busy is the share of CPU time above which a process counts as saturated.
const busy = 0.95

// saturated names the saturated processes.
func (p phase) saturated(server string) string {
	s := p.median(server, func(s sample) float64 { return s.server })
	g := p.median(server, func(s sample) float64 { return s.generator })
	switch {
	case s >= busy && g >= busy:
		return "both"
	case s >= busy:
		return "server"
	case g >= busy:
		return "generator"
	}
	return "neither"
}

// median returns NaN for no values. It sorts v.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// percentile is the smallest value that is not exceeded by p% of the sorted
// values (nearest rank), or 0 if there are none.
func percentile[T cmp.Ordered](sorted []T, p int) T {
	if len(sorted) == 0 {
		return *new(T)
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
