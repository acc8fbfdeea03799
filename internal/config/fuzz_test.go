package config

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

// fuzzSource keeps fuzzed input away from the host: it has two files, one of
// which imports itself, and every variable has a value.
func fuzzSource() Source {
	return Source{
		Files: fstest.MapFS{
			"a.inc": {Data: []byte("errors\n")},
			"b.inc": {Data: []byte("cache 30\nimport b.inc\n")},
		},
		Getenv: func(name string) string { return "v" + name },
	}
}

// FuzzParse checks that any input gives either an error that names a line, or a
// Config that Describe prints and a second Parse repeats. If we accept the
// structure, the library must find the same one.
func FuzzParse(f *testing.F) {
	for _, file := range archives(f, "testdata/*/*.txtar") {
		_, cases := readArchive(f, file)
		for _, c := range cases {
			f.Add([]byte(c.text))
		}
	}
	f.Add([]byte("import a.inc\n. {\nimport b.inc\n}"))
	f.Add([]byte("\"\"\n.\n"))
	f.Add([]byte("\ufeff. {$A} {%B%} {\r\n\"a\\\"b\nc\" \"\"\r\n}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("Corefile", string(text), fuzzSource())
		if err != nil {
			for _, err := range flatten([]error{err}) {
				checkPoints(t, err)
			}
		} else {
			checkConfig(t, c, text)
		}
		// The library opens files, expands variables again, and reads a snippet
		// after a block without braces as a directive: skip such input.
		if !bytes.ContainsAny(text, "($%") && !bytes.Contains(text, []byte("import")) {
			compareGroups(t, "Corefile", string(text), fuzzSource())
		}
	})
}

func checkPoints(t *testing.T, err error) {
	t.Helper()
	fault, ok := err.(*Error)
	if !ok || fault.File == "" || fault.Line < 1 || fault.Err == nil {
		t.Errorf("%#v names no line", err)
	}
}

func checkConfig(t *testing.T, c *Config, text []byte) {
	t.Helper()
	if err := c.Describe(io.Discard); err != nil {
		t.Error(err)
	}
	again, err := Parse("Corefile", string(text), fuzzSource())
	if err != nil || !reflect.DeepEqual(c, again) {
		t.Errorf("a second parse differs, error %v", err)
	}
	for _, b := range c.Blocks {
		if len(b.Zones) == 0 {
			t.Error("a block without zones")
		}
		for _, z := range b.Zones {
			if !strings.HasSuffix(z.Name, ".") || z.Line < 1 {
				t.Errorf("zone %+v", z)
			}
		}
	}
}
