package main

import (
	"context"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/miekg/dns"
)

func TestQuestions(t *testing.T) {
	q, err := newQuestions(mixB)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		index    int
		negative bool
		want     string
	}{
		{0, false, "p0000000.bench.example."},
		{1234567, false, "p1234567.bench.example."},
		{maxNames - 1, true, "x9999999.default.svc.cluster.local."},
		{10, true, "x0000010.default.svc.cluster.local."},
	} {
		var buf [bufLen]byte
		n := q.put(buf[:], 0xabcd, c.index, c.negative)
		var m dns.Msg
		if err := m.Unpack(buf[:n]); err != nil {
			t.Fatal(err)
		}
		if m.Id != 0xabcd || m.Question[0].Name != c.want || m.Question[0].Qtype != dns.TypeA || !m.RecursionDesired {
			t.Errorf("question %d is %v, want %s", c.index, &m, c.want)
		}
	}
}

func TestMixBIsSeventyPercentNegative(t *testing.T) {
	var negative [2]int
	for i := range 1000 {
		for _, m := range []mix{mixA, mixB} {
			if m.negative(i) {
				negative[m]++
			}
		}
	}
	if negative != [2]int{0, 700} {
		t.Errorf("negative names of A and B: %v of 1000, want 0 and 700", negative)
	}
}

// newUpstream starts the scripted upstream for the test, and makes questions.
func newUpstream(t *testing.T) (*upstream, *questions) {
	t.Helper()
	u, err := startUpstream(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	q, err := newQuestions(mixB)
	if err != nil {
		t.Fatal(err)
	}
	return u, q
}

// ask returns the upstream's reply to a query.
func ask(t *testing.T, u *upstream, query []byte) []byte {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(query); err != nil {
		t.Fatal(err)
	}
	r, err := dns.Exchange(&m, u.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	reply, err := r.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// TestUpstreamAnswersAreRight checks the scripted upstream and the checker
// against each other, and that the checker rejects wrong replies.
func TestUpstreamAnswersAreRight(t *testing.T) {
	u, q := newUpstream(t)
	for _, negative := range []bool{false, true} {
		var buf [bufLen]byte
		query := buf[:q.put(buf[:], 1, 42, negative)]
		reply := ask(t, u, query)
		other := append([]byte(nil), query...)
		other[digitsAt]++
		for _, c := range []struct {
			what               string
			reply, query       []byte
			negative, ok, echo bool
		}{
			{what: "the answer", reply: reply, query: query, negative: negative, ok: true},
			{what: "checked as the other kind", reply: reply, query: query, negative: !negative},
			{what: "the answer for another name", reply: reply, query: other, negative: negative},
			{what: "the query itself", reply: query, query: query, negative: negative, echo: true},
			{what: "a truncated answer", reply: reply[:20], query: query, negative: negative},
		} {
			if got := right(c.reply, c.query, c.negative, c.echo); got != c.ok {
				t.Errorf("negative %v, %s: right = %v", negative, c.what, got)
			}
		}
	}
	if n := u.asked.Load(); n != 2 {
		t.Errorf("the upstream counts %d queries, want 2", n)
	}
}

// TestGenerator runs every kind of job against the upstream: each query is
// answered, checked and counted.
func TestGenerator(t *testing.T) {
	u, _ := newUpstream(t)
	for name, j := range map[string]job{
		"in order":    {Mix: mixB, From: 5, To: 505, Window: 8},
		"closed loop": {Mix: mixB, To: 100, Window: 8, Duration: 100 * time.Millisecond},
		"fixed rate":  {Mix: mixA, To: 100, Window: 8, Duration: 100 * time.Millisecond, Rate: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			j.Server = u.addr
			before := u.asked.Load()
			r, err := runJob(j)
			if err != nil {
				t.Fatal(err)
			}
			if asked := u.asked.Load() - before; r.Answers == 0 || r.Wrong+r.Lost != 0 || int64(r.Answers) != asked {
				t.Errorf("%+v, but %d queries at the upstream", r, asked)
			}
			if j.Duration == 0 && r.Answers != j.To-j.From {
				t.Errorf("%d answers of %d names", r.Answers, j.To-j.From)
			}
			if j.Rate > 0 && r.Answers > 100 {
				t.Errorf("%d answers in 100 ms at 1000/s", r.Answers)
			}
		})
	}
}

func TestGeneratorSpreadsOverAllNames(t *testing.T) {
	g := &generator{job: job{From: 10, To: 20, Duration: time.Second}, random: 1}
	var seen [30]int
	for range 10_000 {
		seen[g.pick()]++
	}
	for i, n := range seen {
		if in := i >= 10 && i < 20; in != (n > 0) || n > 2000 {
			t.Errorf("name %d was picked %d times", i, n)
		}
	}
}

func TestProcFigures(t *testing.T) {
	proc := fstest.MapFS{
		"7/task/7/schedstat": {Data: []byte("1000 5 3\n")},
		"7/task/9/schedstat": {Data: []byte("234 0 1\n")},
		"7/status":           {Data: []byte("Name:\tx\nVmRSS:\t    12 kB\n")},
		"8/task/8/schedstat": {Data: []byte("nonsense\n")},
	}
	if d, err := cpuTime(proc, 7); err != nil || d != 1234 {
		t.Errorf("cpuTime = %v, %v, want 1234 ns", d, err)
	}
	for _, pid := range []int{8, 9} { // 9 does not exist
		if _, err := cpuTime(proc, pid); err == nil {
			t.Errorf("no error for process %d", pid)
		}
	}
	if n, err := residentMemory(proc, 7); err != nil || n != 12<<10 {
		t.Errorf("residentMemory = %d, %v, want 12288", n, err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		have float64
		met  bool
	}{{1, true}, {1.4, true}, {1.41, false}, {math.NaN(), false}} {
		err := check(io.Discard, []goal{{"another", 0, 1}, {"x", c.have, 1.4}})
		if (err == nil) != c.met {
			t.Errorf("check of %v: %v", c.have, err)
		}
	}
}

func TestSummaryGoesBetweenTheMarks(t *testing.T) {
	got, err := between([]byte("a\n"+beginMark+"old\n"+endMark+"b\n"), []byte("new\n"))
	if want := "a\n" + beginMark + "new\n" + endMark + "b\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, text := range []string{"", beginMark, endMark + beginMark} {
		if _, err := between([]byte(text), nil); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
	readme, err := os.ReadFile("../../docs/pictures/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := between(readme, nil); err != nil {
		t.Errorf("bench.md: %v", err)
	}
}

// Figures of two rounds, for the goals and the summary.
func TestGoals(t *testing.T) {
	b := &bench{options: options{names: 10, filled: 100, grown: 1000, rounds: 2}, servers: []*server{
		{name: nodens, start: 10 * time.Millisecond}, {name: coreDNS}, {name: unbound}, {name: goEcho}, {name: cEcho}}}
	round := func(ours float64) map[string]sample {
		return map[string]sample{nodens: {cpu: ours, p99: 100}, coreDNS: {cpu: 60, p99: 300}, unbound: {cpu: 10}, goEcho: {cpu: 9}, cEcho: {cpu: 8}}
	}
	f := &figures{misses: phase{round(30), round(36)}, idle: map[string]float64{nodens: 0.0001},
		after: map[string]memory{nodens: {resident: 50_000}}, last: memory{resident: 50_000 + 900*250}}
	f.hits[mixA], f.hits[mixB], f.hits[mixC] = phase{round(8), round(8)}, phase{round(8), round(8.2)}, phase{round(8), round(8)}
	f.search = map[string]searchFigures{nodens: {all: 0.1, warm: 0.1, p50: time.Millisecond}, coreDNS: {p50: 4 * time.Millisecond}}
	f.grown = [2]phase{{round(8), round(8)}, {round(11), round(12)}}
	f.paced[len(rates)-1] = phase{round(8), round(12)}
	watched := map[string]sample{nodens: {cpu: 101}, uncounted: {cpu: 100}, viewed: {cpu: 104}}
	f.statistics = &statisticsFigures{hits: [len(statisticsRates)]phase{{watched}, nil, {watched}}, view: phase{watched}}
	want := []struct {
		what string
		have float64
		met  bool
	}{
		{"CPU per hit / C mmsg echo", 1, true}, {"CPU per hit / unbound", 0.8, true}, {"CPU per hit / CoreDNS", 8.0 / 60, true},
		{"CPU per hit, mix B / A", 1.0125, true}, {"CPU per hit, mix C / B", (1 + 8/8.2) / 2, true},
		{"cluster.local queries upstream per external lookup", 0.1, true}, {"the same after 5s", 0.1, true},
		{"first lookup of an external name / CoreDNS", 0.25, true}, {"CPU per hit with statistics of queries / without", 1.01, true}, {"the same at 15,000/s", 1.01, true},
		{"CPU at 200,000/s with nodens top / without", 104.0 / 101, false}, {"wrong answers on the search path", 0, true}, {"CPU at 5,000/s / C mmsg echo", 1.25, true}, {"p99 at 5,000/s / CoreDNS", 1.0 / 3, true},
		{"CPU per miss / CoreDNS", 0.55, true}, {"p99 of a miss / CoreDNS", 1.0 / 3, true}, {"CPU per hit, 1000 names / 1000", 23.0 / 16, true},
		{"resident bytes per A answer, total", 250, true}, {"idle, share of a core", 0.0001, true}, {"start to the first answer, ms", 10, true},
	}
	for i, g := range b.goals(f) {
		if w := want[i]; g.what != w.what || math.Abs(g.have-w.have) > 1e-9 || g.met() != w.met {
			t.Errorf("%s: %v, met %t, want %+v", g.what, g.have, g.met(), w)
		}
	}
	var summary strings.Builder
	b.summary(&summary, f)
	for _, part := range []string{"| nodens | 0 | 8.00 | 8.10 | 10.0 | 100 | 33.0 | 0 | 10 |", "| C mmsg echo | 0 | 8.00 | – |", "takes 1.00 of the CPU of an echo in C, 0.80 of unbound's, 0.13 of CoreDNS's", "250 bytes"} {
		if !strings.Contains(summary.String(), part) {
			t.Errorf("%q is not in the summary:\n%s", part, summary.String())
		}
	}
}

// The overlay compiles and counts no hit.
func TestWithoutStatistics(t *testing.T) {
	e := &env{dir: t.TempDir()}
	overlay, err := e.withoutStatistics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	test := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", overlay, "-run", "^TestNamesAreExact$", "github.com/nodens-dns/nodens/internal/querystats")
	if out, err := test.CombinedOutput(); err == nil || !strings.Contains(string(out), "0 queries counted") {
		t.Errorf("%v: %s", err, out)
	}
}
