package config

import (
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("Corefile", text, Source{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDirectivesAreParsed checks that Parse knows every directive that error
// messages list.
func TestDirectivesAreParsed(t *testing.T) {
	if !slices.IsSorted(DirectiveNames()) {
		t.Error("DirectiveNames is not sorted")
	}
	for _, name := range DirectiveNames() {
		_, err := Parse("Corefile", ". {\n"+name+"\n}\n", Source{})
		if err != nil && strings.Contains(err.Error(), "directive") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLines checks the file and line of values from the Corefile, a snippet and an
// imported file.
func TestLines(t *testing.T) {
	files := fstest.MapFS{"etc/zone.inc": {Data: []byte("\n\nexample.org {\n  ready\n}\n")}}
	const file, inc = "/etc/Corefile", "/etc/zone.inc"
	c, err := Parse(file, "(s) {\n  health\n}\na.example,\nb.example {\n  import s\n\n  cache\n}\nimport *.inc\nimport none*.inc\n", Source{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{file, inc}; !slices.Equal(c.Files, want) {
		t.Errorf("files %v, want %v", c.Files, want)
	}
	a, b := c.Blocks[0], c.Blocks[1]
	got := []any{a.File, a.Line, a.Zones[1].Line, a.Health.Line, a.Cache.Line, b.File, b.Line, b.Ready.Line}
	want := []any{file, 4, 5, 2, 8, inc, 3, 4}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestValuesWithoutDescription(t *testing.T) {
	c := mustParse(t, `. {
    cache {
        success 100 20
        denial 100 20 5
        prefetch 0
        serve_stale 0s
    }
    errors {
        consolidate 1m a
        consolidate 2m b warning
        consolidate 3m c info
        consolidate 4m d debug
    }
    forward . 10.0.0.1 {
        tls ca.pem
    }
}`).Blocks[0]
	if c.Cache.Success.MinTTLSet || !c.Cache.Denial.MinTTLSet {
		t.Errorf("MinTTLSet is %t, %t", c.Cache.Success.MinTTLSet, c.Cache.Denial.MinTTLSet)
	}
	if c.Cache.Prefetch != nil || c.Cache.Stale != nil {
		t.Errorf("an amount and a duration of 0 do not disable: %+v, %+v", c.Cache.Prefetch, c.Cache.Stale)
	}
	var levels []slog.Level
	for _, e := range c.Errors.Consolidate {
		levels = append(levels, e.Level)
	}
	if want := []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}; !slices.Equal(levels, want) {
		t.Errorf("levels %v, want %v", levels, want)
	}
	if got := *c.Forwards[0].TLS; got != (TLS{CA: "ca.pem"}) {
		t.Errorf("one argument of tls: %+v", got)
	}
}

func TestOverlapDefaultPort(t *testing.T) {
	c := mustParse(t, ".:53 {\n  errors\n}\n. {\n  errors\n}\n")
	if err := c.Overlap(1053); err != nil {
		t.Errorf("default port 1053: %v", err)
	}
	want := "Corefile:4: zone . is already served on line 1, on the same address"
	if err := c.Overlap(53); err == nil || err.Error() != want {
		t.Errorf("default port 53: %v\nwant %s", err, want)
	}
}

func TestLimits(t *testing.T) {
	t.Run("size", func(t *testing.T) {
		_, err := Parse("Corefile", strings.Repeat("#", maxFileSize+1), Source{})
		if want := "Corefile:1: cannot read the Corefile: larger than 4 MiB"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
	for name, text := range map[string]string{
		"directives": ". {\n" + strings.Repeat("x\n", 10*maxErrors) + "}\n",
		"blocks":     strings.Repeat("b. {\n}\n", 10*maxErrors),
	} {
		t.Run("errors of "+name, func(t *testing.T) {
			_, err := Parse("Corefile", text, Source{})
			if n := len(flatten([]error{err})); n < maxErrors || n > 2*maxErrors {
				t.Errorf("%d errors", n)
			}
		})
	}
	t.Run("words", func(t *testing.T) {
		_, err := Parse("Corefile", strings.Repeat("x ", maxTokens+1), Source{})
		if want := "Corefile:1: the Corefile and its imports have more than 200000 words"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestExpandEnv(t *testing.T) {
	getenv := func(name string) string { return map[string]string{"A": "1", "B": "{$A}"}[name] }
	for in, want := range map[string]string{
		"{$A}":          "1",
		"x{%A%}:{$A}y":  "x1:1y",
		"{$UNSET}:9253": ":9253",
		"{$B}":          "{$A}", // once only
		"{$}":           "{$}",
		"{$A":           "{$A",
		"{%%}{$A}":      "{%%}1",
	} {
		if got := expandEnv(in, getenv); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestReverseZones(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.1.2.3/32":     "3.2.1.10.in-addr.arpa.",
		"10.1.2.0/24":     "2.1.10.in-addr.arpa.",
		"10.1.2.3/23":     "2.1.10.in-addr.arpa. 3.1.10.in-addr.arpa.",
		"254.0.0.0/7":     "254.in-addr.arpa. 255.in-addr.arpa.",
		"0.0.0.0/0":       "in-addr.arpa.",
		"::/0":            "ip6.arpa.",
		"fd00::/7":        "c.f.ip6.arpa. d.f.ip6.arpa.",
		"2001:db8::/33":   "0.8.b.d.0.1.0.0.2.ip6.arpa. 1.8.b.d.0.1.0.0.2.ip6.arpa. 2.8.b.d.0.1.0.0.2.ip6.arpa. 3.8.b.d.0.1.0.0.2.ip6.arpa. 4.8.b.d.0.1.0.0.2.ip6.arpa. 5.8.b.d.0.1.0.0.2.ip6.arpa. 6.8.b.d.0.1.0.0.2.ip6.arpa. 7.8.b.d.0.1.0.0.2.ip6.arpa.",
		"2001:db8:f::/48": "f.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.",
	} {
		zones, err := parseZones(prefix)
		if got := strings.Join(zones, " "); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", prefix, got, err, want)
		}
	}
}

func TestParseName(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + strings.Repeat("b", 61) // 255 octets on the wire
	for in, want := range map[string]string{
		".":                       ".",
		"Example.ORG":             "example.org.",
		"_dns.xn--bcher-kva.de.":  "_dns.xn--bcher-kva.de.",
		`\069xample\046org`:       `example\.org.`,
		`a\..b`:                   `a\..b.`,
		longest:                   longest + ".",
		longest + "b":             "",
		label + "a":               "",
		label + "." + label + `\`: "",
		"":                        "",
		"..":                      "",
		".a":                      "",
		"a b":                     "",
		`a\25`:                    "",
		`a\256`:                   "",
	} {
		got, err := parseName(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestDescribeReportsWriteError(t *testing.T) {
	full := errors.New("no space left")
	err := mustParse(t, ". {\n  errors\n}\n").Describe(failingWriter{full})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                             "0s",
		30 * time.Second:              "30s",
		10 * time.Minute:              "10m",
		time.Hour:                     "1h",
		100*time.Hour + 5*time.Minute: "100h5m",
		time.Hour + 30*time.Second:    "1h0m30s",
		90 * time.Second:              "1m30s",
		1500 * time.Millisecond:       "1.5s",
	} {
		if got := durationText(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
}
