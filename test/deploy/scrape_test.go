package deploy

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// The scraped daemon has every kind of upstream and zone.
const scrapedCorefile = `cluster.local {
    bind 169.254.20.10
    errors
    cache 30
    loop
    forward . 10.96.0.10 {
        force_tcp
    }
    prometheus 169.254.20.10:9253
}
. {
    bind 169.254.20.10
    errors
    cache 30
    forward . 10.96.0.10
}
`

// scrape returns two scrapes of a daemon that answers queries.
func scrape(t *testing.T) database {
	t.Helper()
	before, after := scrapes(t)
	return newDatabase(t, before, after)
}

// scrapes starts nodens on a node and returns its metrics before and after some
// queries.
func scrapes(t *testing.T) (before, after string) {
	t.Helper()
	needRoot(t, "dig", "curl")
	n := newNode(t)
	n.start("-conf", writeFile(t, filepath.Join(t.TempDir(), "Corefile"), scrapedCorefile), "-basecorefile=", "-localip=169.254.20.10", "-metrics-listen-address=0")
	ask := func(miss string) {
		for _, name := range []string{"kubernetes.default.svc.cluster.local", "nothing.cluster.local", "outside.example", miss} {
			for _, option := range []string{"+notcp", "+tcp", "+dnssec"} {
				n.run("dig", "@169.254.20.10", option, "+time=10", name, "A", name, "AAAA")
			}
		}
	}
	expose := func() string {
		return n.run("curl", "--silent", "--fail", "--max-time", "30", "http://169.254.20.10:9253/metrics")
	}
	ask("before.example")
	before = expose()
	ask("after.example")
	return before, expose()
}

// start runs nodens on the node until the end of the test. It returns once nodens
// serves.
func (n *node) start(args ...string) {
	n.t.Helper()
	line := n.enter(append([]string{nodens}, args...)...)
	cmd := exec.Command(line[0], line[1:]...)
	var log strings.Builder
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		_ = cmd.Wait()
		n.t.Fatalf("nodens %v does not start: %v\n%s", args, err, log.String())
	}
}

// Times of the two scrapes and of evaluation. Every range of at least a minute that
// ends at the last one has a rate.
var (
	firstScrape  = time.Unix(1_000_000, 0)
	secondScrape = firstScrape.Add(30 * time.Second)
)

// series has the values of a series in both scrapes.
type series struct {
	labels        labels.Labels
	first, second float64
}

// database has the series as Prometheus would.
type database []series

// newDatabase parses two scrapes.
func newDatabase(t *testing.T, before, after string) database {
	t.Helper()
	first := parseScrape(t, before)
	var db database
	for key, s := range parseScrape(t, after) {
		s.first = first[key].second // 0 if it is missing, as counters start at 0
		db = append(db, s)
	}
	slices.SortFunc(db, func(a, b series) int { return labels.Compare(a.labels, b.labels) })
	return db
}

func parseScrape(t *testing.T, text string) map[string]series {
	t.Helper()
	p, err := textparse.New([]byte(text), "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{FallbackContentType: "text/plain"})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]series)
	for {
		entry, err := p.Next()
		if err != nil {
			break
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		_, _, v := p.Series()
		b := labels.NewBuilder(l)
		b.Set("job", "nodens").Set("instance", "192.0.2.1:9253")
		all[b.Labels().String()] = series{labels: b.Labels(), second: v}
	}
	if len(all) == 0 {
		t.Fatal("nothing was scraped")
	}
	return all
}

// Querier implements storage.Queryable.
func (db database) Querier(_, _ int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		var found []storage.Series
		for _, s := range db {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
				found = append(found, storage.NewListSeries(s.labels, []chunks.Sample{
					sample{firstScrape.UnixMilli(), s.first}, sample{secondScrape.UnixMilli(), s.second},
				}))
			}
		}
		return &listSet{series: found}
	}}, nil
}

type listSet struct {
	series []storage.Series
	at     int
}

func (s *listSet) Next() bool                      { s.at++; return s.at <= len(s.series) }
func (s *listSet) At() storage.Series              { return s.series[s.at-1] }
func (*listSet) Err() error                        { return nil }
func (*listSet) Warnings() annotations.Annotations { return nil }

type sample struct {
	t int64
	v float64
}

func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) ST() int64                   { return 0 }
func (s sample) T() int64                    { return s.t }
func (s sample) F() float64                  { return s.v }
func (s sample) Type() chunkenc.ValueType    { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// evaluate returns the value of an expression at the second scrape.
func (db database) evaluate(t *testing.T, expr string) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	q, err := engine.NewInstantQuery(context.Background(), db, nil, expr, secondScrape)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	r := q.Exec(context.Background())
	v, err := r.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(v)
}
