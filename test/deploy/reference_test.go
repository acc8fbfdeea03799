package deploy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// metric is a row of the reference.
type metric struct {
	name, kind, help string
	labels           []string
}

var metricName = regexp.MustCompile(`^(coredns|nodens)_[a-z0-9_]+$`)

// sourceMetrics finds the metrics in the code: strings that look like the name of a
// metric. The help follows as an argument of a call or as field Help. Labels are the
// strings beside them. The kind is that of the function or type, if known.
func sourceMetrics(t *testing.T) map[string]metric {
	t.Helper()
	all := make(map[string]metric)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && slices.Contains([]string{"test", ".git", "deploy", "doctor", "migrate", "config"}, d.Name()) {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		var above []ast.Node
		ast.Inspect(f, func(n ast.Node) bool {
			if n == nil {
				above = above[:len(above)-1]
				return true
			}
			if m, ok := metricAt(f, n, above); ok {
				all[m.name] = m
			} else if lit, isLit := n.(*ast.BasicLit); isLit && metricName.MatchString(text(lit)) && all[text(lit)].name == "" {
				all[text(lit)] = metric{name: text(lit)} // the rest comes from a scrape
			}
			above = append(above, n)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// metricAt reads the call or the composite literal n; above are its parents.
func metricAt(f *ast.File, n ast.Node, above []ast.Node) (m metric, ok bool) {
	var rest []ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		for i, arg := range n.Args {
			// A text of several words is the help; other calls read a metric.
			if name := text(arg); metricName.MatchString(name) && i+1 < len(n.Args) && strings.Contains(text(n.Args[i+1]), " ") {
				m.name, m.help, rest = name, text(n.Args[i+1]), n.Args[i+2:]
			}
		}
		m.kind = kindOf(n.Fun)
	case *ast.CompositeLit:
		for _, e := range n.Elts {
			kv, isPair := e.(*ast.KeyValueExpr)
			if !isPair {
				continue
			}
			switch fmt.Sprint(kv.Key) {
			case "Name":
				m.name = text(kv.Value)
			case "Help":
				m.help = text(kv.Value)
			case "ConstLabels":
				rest = append(rest, kv.Value)
			}
		}
		m.kind = kindOf(n.Type)
		if call, isCall := above[len(above)-1].(*ast.CallExpr); isCall && len(call.Args) > 1 {
			rest = append(rest, call.Args[1:]...)
		}
	}
	for _, e := range rest {
		m.labels = append(m.labels, labelNames(f, e)...)
	}
	slices.Sort(m.labels)
	m.labels = slices.Compact(m.labels)
	if m.kind == "" && strings.HasSuffix(m.name, "_total") {
		m.kind = "counter"
	}
	return m, metricName.MatchString(m.name) && m.help != ""
}

// text returns the value of a string constant, or "".
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	}
	return ""
}

// kindOf returns the kind of a metric from the name of a function or type.
func kindOf(e ast.Expr) string {
	name := ""
	switch e := e.(type) {
	case *ast.SelectorExpr:
		name = e.Sel.Name
	case *ast.Ident:
		name = e.Name
	}
	for _, kind := range []string{"counter", "gauge", "histogram"} {
		if strings.Contains(strings.ToLower(name), kind) {
			return kind
		}
	}
	return ""
}

// labelNames returns the strings of a list or the keys of a map, which may be a
// variable of the file.
func labelNames(f *ast.File, e ast.Expr) (names []string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s := text(e); s != "" {
			names = append(names, s)
		}
	case *ast.CompositeLit:
		for _, x := range e.Elts {
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				x = kv.Key
			}
			names = append(names, text(x))
		}
	case *ast.Ident:
		ast.Inspect(f, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && fmt.Sprint(a.Lhs[0]) == e.Name {
				if c, ok := a.Rhs[0].(*ast.CompositeLit); ok {
					names = append(names, labelNames(f, c)...)
				}
			}
			return true
		})
	}
	return names
}

// exposedMetrics returns the kinds and labels in a scrape.
func exposedMetrics(t *testing.T, scraped string) map[string]metric {
	t.Helper()
	p, err := textparse.New([]byte(scraped), "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{FallbackContentType: "text/plain"})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]metric)
	var now metric
	help := make(map[string]string)
	for {
		entry, err := p.Next()
		if err != nil {
			return all
		}
		switch entry {
		case textparse.EntryHelp:
			name, text := p.Help()
			help[string(name)] = string(text)
		case textparse.EntryType:
			name, kind := p.Type()
			now = metric{name: string(name), kind: string(kind), help: help[string(name)]}
		case textparse.EntrySeries:
			var l labels.Labels
			p.Labels(&l)
			names := make(map[string]bool)
			l.Range(func(l labels.Label) { names[l.Name] = true })
			delete(names, "__name__")
			delete(names, "le")
			now.labels = slices.Sorted(maps.Keys(names))
			all[now.name] = now
		}
	}
}

// unexposed has the kinds of metrics that a daemon exposes only with redirection or
// normalize.
var unexposed = map[string]string{
	"nodens_redirect_alive":                 "gauge",
	"nodens_redirect_heartbeat_age_seconds": "gauge",
	"nodens_redirect_fallback_endpoints":    "gauge",
	"nodens_normalize_sibling_wait_seconds": "histogram",
}

// TestMetricsReference checks that docs/metrics.md has every metric in the code with
// its kind, labels and help.
func TestMetricsReference(t *testing.T) {
	all := sourceMetrics(t)
	_, scraped := scrapes(t)
	for name, e := range exposedMetrics(t, scraped) {
		if !metricName.MatchString(name) {
			continue
		}
		m, ok := all[name]
		if !ok {
			t.Errorf("%s is exposed but not found in the code", name)
		}
		if m.kind != "" && m.kind != e.kind || m.help != "" && m.help != e.help {
			t.Errorf("the code has %+v, the scrape has %+v", m, e)
		}
		all[name] = e
	}
	for name, m := range all {
		if m.kind == "" {
			m.kind = unexposed[name]
			all[name] = m
		}
		if m.kind == "" || m.help == "" {
			t.Errorf("%s: neither the code nor a scrape shows its kind and help: %+v", name, m)
		}
	}
	text := referenceText(all)
	if *update {
		writeFile(t, metricsReference, text)
	}
	if got, _ := os.ReadFile(metricsReference); string(got) != text {
		t.Errorf("%s is out of date: run make metrics", metricsReference)
	}
}

func referenceText(all map[string]metric) string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, prefix := range []string{"coredns_", "nodens_"} {
		fmt.Fprintf(&b, "\n## %s…\n\n| name | kind | labels | meaning |\n|---|---|---|---|\n", prefix)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if m := all[name]; strings.HasPrefix(name, prefix) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), m.help)
			}
		}
	}
	return b.String()
}

const referenceHead = `# Metrics

<!-- Made from the code by make metrics. -->

The ` + "`prometheus`" + ` directive sets the address of /metrics. In the chart it is port 9253
of every node. nodens also exposes Go's ` + "`go_*`" + ` and ` + "`process_*`" + `. Alerts and a
dashboard are in deploy/chart/files.

Metrics that start with ` + "`coredns_`" + ` have the same meaning as in CoreDNS, and its
dashboards work. The label ` + "`view`" + ` is always empty; ` + "`server`" + ` is the address that
received the query, ` + "`zone`" + ` the zone of the block or "dropped", ` + "`to`" + ` an upstream.
The values of a label never come from a query or a client, so their number is bounded.
`
