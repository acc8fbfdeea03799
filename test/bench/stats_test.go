package main

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1, 2}, 2},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v, want NaN", got)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		in      []int
		p, want int
	}{
		{nil, 50, 0},
		{[]int{7}, 1, 7},
		{[]int{7}, 99, 7},
		{[]int{1, 2, 3}, 50, 2},
		{[]int{1, 2, 3, 4}, 50, 2},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred[:50], 99, 50},
	} {
		if got := percentile(c.in, c.p); got != c.want {
			t.Errorf("percentile(%v, %d) = %d, want %d", c.in, c.p, got, c.want)
		}
	}
}

// rounds makes a phase of one server with these CPU figures.
func rounds(server string, figures ...float64) phase {
	var p phase
	for _, v := range figures {
		p = append(p, map[string]sample{server: {cpu: v}})
	}
	return p
}

// TestRatioPairsRounds has a machine that is ten times slower in one round: the
// ratio of the medians would be 10, or 1.
func TestRatioPairsRounds(t *testing.T) {
	a, b := rounds("x", 2, 20, 20), rounds("y", 1, 10, 10)
	b[1]["y"], b[2]["y"] = sample{cpu: 10}, sample{cpu: 4}
	if got := a.ratio("x", b, "y", cpu); got != 2 {
		t.Errorf("ratio = %v, want 2", got)
	}
	if got := a.ratio("x", b, "absent", cpu); !math.IsNaN(got) {
		t.Errorf("ratio to an absent server = %v, want NaN", got)
	}
}

func TestNewSample(t *testing.T) {
	s := newSample(result{Answers: 1000, Wall: 2 * time.Second, P99: 3 * time.Millisecond}, time.Second, 500*time.Millisecond, 7)
	if s.cpu != 1000 || s.rate != 500 || s.p99 != 3000 || s.server != 0.5 || s.generator != 0.25 || s.asked != 7 {
		t.Errorf("got %+v", s)
	}
}

func TestSaturated(t *testing.T) {
	for _, c := range []struct {
		server, generator float64
		want              string
	}{
		{0.99, 0.5, "server"}, {0.5, 0.99, "generator"}, {0.99, 0.99, "both"}, {0.5, 0.5, "neither"},
	} {
		p := phase{{"x": {server: c.server, generator: c.generator}}}
		if got := p.saturated("x"); got != c.want {
			t.Errorf("saturated(%v, %v) = %q, want %q", c.server, c.generator, got, c.want)
		}
	}
}
