package conformance

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/conformance.md")

const document = "../../docs/conformance.md"

// row is one requirement.
type row struct {
	id, text string
	tests    []string // "folder TestName"
}

// chapter is a title of rows.txt and the rows below it.
type chapter struct {
	title string
	rows  []row
	notes []string // paragraphs after the table
}

// TestDocument expects that every row has a test, every scenario a row, that each
// named test exists, and that docs/conformance.md is up to date.
func TestDocument(t *testing.T) {
	chapters := readRows(t)
	addScenarios(t, chapters)
	var b strings.Builder
	b.WriteString("# Conformance\n\n<!-- Made from test/conformance/rows.txt and the names of the tests by\n     go test ./test/conformance -run TestDocument -update -->\n\n" +
		"The requirements on nodens, and the tests that check them. The scenarios are files in\n`test/conformance/testdata`. They run against the real daemon and scripted\nupstreams, with a clock that the scenario controls.\n")
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n## %s\n\n| row | requirement | tests |\n|---|---|---|\n", c.title)
		for _, r := range c.rows {
			if len(r.tests) == 0 {
				t.Errorf("row %s has no test", r.id)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.text, strings.Join(r.tests, "<br>"))
		}
		for _, n := range c.notes {
			fmt.Fprintf(&b, "\n%s\n", n)
		}
	}
	if *update {
		if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("docs/conformance.md is out of date; run this test with -update")
	}
}

func readRows(t *testing.T) []chapter {
	t.Helper()
	text, err := os.ReadFile("rows.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []chapter
	for i, s := range strings.Split(string(text), "\n") {
		switch {
		case s == "" || s[0] == '#':
		case strings.HasPrefix(s, "= "):
			list = append(list, chapter{title: s[2:]})
		case strings.HasPrefix(s, "> "):
			list[len(list)-1].notes = append(list[len(list)-1].notes, s[2:])
		case strings.HasPrefix(s, "+ "):
			rows := list[len(list)-1].rows
			rows[len(rows)-1].tests = append(rows[len(rows)-1].tests, existing(t, i+1, s[2:]))
		default:
			id, what, ok := strings.Cut(s, " | ")
			if !ok {
				t.Fatalf("rows.txt:%d: want ID | requirement", i+1)
			}
			c := &list[len(list)-1]
			c.rows = append(c.rows, row{id: id, text: strings.ReplaceAll(what, "|", `\|`)})
		}
	}
	return list
}

// existing returns "FOLDER TestName", formatted as code, if that test exists.
func existing(t *testing.T, number int, s string) string {
	t.Helper()
	folder, name, _ := strings.Cut(s, " ")
	top, sub, _ := strings.Cut(name, "/")
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(top) + `\(`)
	found := slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && declared.Match(text)
	})
	if folder == "test/conformance" && sub != "" {
		_, err := os.Stat(filepath.Join("testdata", sub+".txtar"))
		found = found && err == nil
	}
	if !found {
		t.Errorf("rows.txt:%d: no test %s", number, s)
	}
	return fmt.Sprintf("`%s` %s", folder, name)
}

// addScenarios adds each scenario to its row.
func addScenarios(t *testing.T, chapters []chapter) {
	t.Helper()
	byID := map[string]*row{}
	for i := range chapters {
		for j := range chapters[i].rows {
			byID[chapters[i].rows[j].id] = &chapters[i].rows[j]
		}
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txtar")
		id, _, _ := strings.Cut(name, "-")
		r, ok := byID[id]
		if !ok {
			t.Errorf("%s: rows.txt has no row %s", f, id)
			continue
		}
		r.tests = append(r.tests, "scenario "+name)
	}
}
