package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const metricsReference = root + "/docs/metrics.md"

// documented returns the metrics in docs/metrics.md, which is generated.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllStringSubmatch(readFile(t, metricsReference), -1) {
		all[m[1]] = true
	}
	if len(all) < 50 {
		t.Fatalf("%s has %d metrics only", metricsReference, len(all))
	}
	return all
}

// checkNames fails for metrics that are not documented. It knows the names of the
// series of a histogram.
func checkNames(t *testing.T, known map[string]bool, expr string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok && v.Name != "" && !strings.HasPrefix(v.Name, "process_") {
			name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(v.Name, "")
			if !known[name] && !known[v.Name] {
				t.Errorf("%s: no such metric: %s", expr, v.Name)
			}
		}
		return nil
	})
}

// with returns a copy of the database in which the series that match set have the
// value v at the second scrape. If there are none, it adds one.
func (db database) with(t *testing.T, matcher string, v float64) database {
	t.Helper()
	ms, err := parser.NewParser(parser.Options{}).ParseMetricSelector(matcher)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(db)
	found := false
	for i, s := range changed {
		if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			changed[i].second, found = v, true
		}
	}
	if !found {
		b := labels.NewBuilder(labels.FromStrings("job", "nodens", "instance", "192.0.2.1:9253"))
		for _, m := range ms {
			b.Set(m.Name, m.Value)
		}
		changed = append(changed, series{labels: b.Labels(), first: 0, second: v})
	}
	return changed
}

// quick returns a copy of the database in which all queries are in the first bucket,
// which makes the test independent of the speed of the machine.
func (db database) quick() database {
	changed := slices.Clone(db)
	all := make(map[string]series)
	for _, s := range db {
		if s.labels.Get("__name__") == "coredns_dns_request_duration_seconds_bucket" && s.labels.Get("le") == "+Inf" {
			all[s.labels.Get("zone")] = s
		}
	}
	for i, s := range changed {
		if s.labels.Get("__name__") == "coredns_dns_request_duration_seconds_bucket" {
			inf := all[s.labels.Get("zone")]
			changed[i].first, changed[i].second = inf.first, inf.second
		}
	}
	return changed
}

// scene makes an alert fire: selectors, and the values of their series at the second
// scrape.
type scene map[string]float64

// TestAlerts checks that no alert fires for a real scrape of a healthy node, and that
// each fires for its scene.
func TestAlerts(t *testing.T) {
	healthy := scrape(t).quick()
	known := documented(t)
	fires := map[string]scene{
		"NodensReloadFailed":     {`nodens_config_last_reload_successful`: 0},
		"NodensForwardingLoop":   {`nodens_loop_detected{zone="cluster.local."}`: 1},
		"NodensUpstreamDown":     {`nodens_upstream_healthy`: 0},
		"NodensAllUpstreamsDown": {`nodens_upstream_healthy`: 0, `coredns_forward_healthcheck_broken_total`: 100},
		"NodensServfail":         {`coredns_dns_responses_total{rcode="SERVFAIL",zone=".",plugin="forward"}`: 1e4},
		"NodensSlow":             {`coredns_dns_request_duration_seconds_bucket{zone=".",le="+Inf"}`: 1e6},
		"NodensSearchCutOff":     {`nodens_search_cut_off{zone="cluster.local."}`: 1},
		"NodensTooManyMisses":    {`nodens_server_miss_limited_total`: 10},
		"NodensLimitLowered":     {`nodens_limit_clamped{limit="max_misses"}`: 1},
		"NodensCacheTooSmall":    {`nodens_cache_bytes`: 1 << 40, `coredns_cache_evictions_total{type="success",zones="."}`: 1e6},
		"NodensSetupFailed":      {`nodens_netsetup_errors_total{object="rules"}`: 2},
		"NodensSetupContested":   {`nodens_netsetup_repairs_total{object="rules"}`: 1000},
		"NodensRedirectFailed":   {`nodens_redirect_state{state="failed"}`: 1},
		"NodensRedirectNotAlive": {`nodens_redirect_state{state="on"}`: 1, `nodens_redirect_alive`: 0},
		"NodensFallbackDown":     {`nodens_redirect_fallback_up{fallback="10.0.2.7:53"}`: 0},
		"NodensAskedFromOutside": {`nodens_redirect_refused_total`: 1e6},
		"NodensPanic":            {`coredns_panics_total`: 1},
	}
	for _, rule := range alerts(t) {
		t.Run(rule.Alert, func(t *testing.T) {
			expr := rule.Expr.String()
			checkNames(t, known, expr)
			if got := healthy.evaluate(t, expr); len(got) > 0 {
				t.Errorf("fires on a healthy node: %v", got)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" {
				t.Errorf("summary, description and severity are needed: %+v", rule)
			}
			if rule.Alert == "NodensAbsent" {
				if got := (database{}).evaluate(t, expr); len(got) != 1 {
					t.Errorf("does not fire without a scrape: %v", got)
				}
				return
			}
			changes, ok := fires[rule.Alert]
			if !ok {
				t.Fatal("no scene makes it fire")
			}
			delete(fires, rule.Alert)
			db := healthy
			for _, selector := range slices.Sorted(maps.Keys(changes)) {
				db = db.with(t, selector, changes[selector])
			}
			if got := db.evaluate(t, expr); len(got) == 0 {
				t.Errorf("does not fire with %v", changes)
			}
		})
	}
	if len(fires) > 0 {
		t.Errorf("no such alerts: %v", fires)
	}
}

func alerts(t *testing.T) []monitoring.Rule {
	t.Helper()
	all := mustTemplate(t, "--values", examples+"/monitoring.yaml")
	var rules []monitoring.Rule
	for _, g := range get[*monitoring.PrometheusRule](t, all).Spec.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) < 10 {
		t.Fatalf("%d alerts", len(rules))
	}
	return rules
}

// dashboard has the fields of Grafana's model that the tests check.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Templating    struct{ List []struct{ Name, Type string } }
	Panels        []panel
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ H, W, X, Y int }
	Datasource struct{ UID string }
	Targets    []struct{ RefID, Expr, LegendFormat string }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, chart+"/files/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboardStructure checks what Grafana needs: unique ids, panels that do not overlap,
// and a data source variable. The picture in the docs shows the same panels.
func TestDashboardStructure(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 36 || len(d.Panels) < 20 {
		t.Fatalf("title %q, uid %q, schema %d, %d panels", d.Title, d.UID, d.SchemaVersion, len(d.Panels))
	}
	variables := []string{"__data"} // of Grafana, in links
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	for _, m := range regexp.MustCompile(`\$\{(\w+)`).FindAllStringSubmatch(readFile(t, chart+"/files/dashboard.json"), -1) {
		if !slices.Contains(variables, m[1]) {
			t.Errorf("no variable %s", m[1])
		}
	}
	if page := "${proxy}/api/v1/namespaces/${__data.fields.namespace}/pods/${__data.fields.pod}:9354/proxy/"; !strings.Contains(readFile(t, chart+"/files/dashboard.json"), `"url": "`+page+`"`) {
		t.Errorf("no link to the status pages: %s", page)
	}
	var titles []string
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		titles = append(titles, p.Title)
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
			t.Errorf("%s: place %+v", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s overlaps %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && (p.Datasource.UID != "${datasource}" || len(p.Targets) == 0) {
			t.Errorf("%s: data source %q, %d targets", p.Title, p.Datasource.UID, len(p.Targets))
		}
	}
	if drawn := strings.Split(strings.TrimSpace(readFile(t, pictures+"/dashboard.txt")), "\n"); !slices.Equal(drawn, titles) {
		t.Errorf("the picture in the docs shows other panels; run make dashboard: %q, not %q", drawn, titles)
	}
}

// TestDashboardExpressions checks that every expression has a result for a running
// daemon, and that rows with metrics of CoreDNS use no other metrics.
func TestDashboardExpressions(t *testing.T) {
	db := scrape(t)
	// Exposed only with redirection.
	db = db.with(t, `nodens_redirect_total{hook="connect4",reason="redirected"}`, 10)
	known := documented(t)
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	shared, seen := false, 0
	for _, p := range readDashboard(t).Panels {
		if p.Type == "row" {
			shared = strings.Contains(p.Title, "metrics of CoreDNS")
			continue
		}
		for _, target := range p.Targets {
			seen++
			name := fmt.Sprintf("%s/%s", p.Title, target.RefID)
			if shared && strings.Contains(target.Expr, "nodens_") {
				t.Errorf("%s: %s is not CoreDNS's", name, target.Expr)
			}
			expr := variables.Replace(target.Expr)
			checkNames(t, known, expr)
			if got := db.evaluate(t, expr); len(got) == 0 {
				t.Errorf("%s: %s has no result", name, expr)
			}
			for _, l := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if got := db.evaluate(t, expr); len(got) > 0 && got[0].Metric.Get(l[1]) == "" {
					t.Errorf("%s: %s has no label %s for its legend", name, expr, l[1])
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d expressions", seen)
	}
}
