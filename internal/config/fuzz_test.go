package config

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// fuzzSource gives a fuzzed import nothing of the host to open or to list:
// there are two files, one of which imports itself, and every variable has a
// value.
func fuzzSource() source {
	files := map[string]string{"a.inc": "errors\n", "b.inc": "cache 30\nimport b.inc\n"}
	return source{
		getenv: func(name string) string { return "v" + name },
		readFile: func(path string) ([]byte, error) {
			text, ok := files[filepath.Base(path)]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(text), nil
		},
		glob: func(string) ([]string, error) { return []string{"a.inc"}, nil },
	}
}

// FuzzParse wants three things of any input: an error that points, or a Config
// that can be described and that a second Parse repeats; never a panic; and
// where structure is accepted, the library's view of it.
func FuzzParse(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*/*.corefile")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, seed := range seeds {
		text, err := os.ReadFile(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("import a.inc\n. {\nimport b.inc\n}"))
	f.Add([]byte("\"\"\n.\n"))
	f.Add([]byte("\ufeff. {$A} {%B%} {\r\n\"a\\\"b\nc\" \"\"\r\n}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse("Corefile", bytes.NewReader(text), fuzzSource())
		if err != nil {
			for _, err := range flatten([]error{err}) {
				checkPoints(t, err)
			}
		} else {
			checkConfig(t, c, text)
		}
		// The library opens files, re-expands variables and takes a snippet
		// for a directive after a block without braces; stay clear of that.
		if !bytes.ContainsAny(text, "($%") && !bytes.Contains(text, []byte("import")) {
			compareGroups(t, "Corefile", text, fuzzSource())
		}
	})
}

func checkPoints(t *testing.T, err error) {
	t.Helper()
	fault, ok := err.(*Error)
	if !ok || fault.File == "" || fault.Line < 1 || fault.Err == nil {
		t.Errorf("%#v does not point", err)
	}
}

func checkConfig(t *testing.T, c *Config, text []byte) {
	t.Helper()
	if err := c.Describe(io.Discard); err != nil {
		t.Error(err)
	}
	again, err := parse("Corefile", bytes.NewReader(text), fuzzSource())
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
