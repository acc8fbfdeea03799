package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected files in testdata")

// TestBad parses testdata/bad/NAME.corefile and compares the error with
// NAME.err, byte for byte.
func TestBad(t *testing.T) {
	t.Chdir("testdata/bad")
	files, err := filepath.Glob("*.corefile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".corefile"), func(t *testing.T) {
			c, err := Parse(file, open(t, file))
			if err == nil {
				t.Fatal("no error")
			}
			if c != nil {
				t.Error("a Config came with the error")
			}
			compare(t, strings.TrimSuffix(file, ".corefile")+".err", err.Error()+"\n")
			for _, err := range flatten([]error{err}) {
				checkError(t, err)
			}
		})
	}
}

// checkError wants what callers rely on: every fault is an *Error that points
// into a file.
func checkError(t *testing.T, err error) {
	t.Helper()
	fault, ok := errors.AsType[*Error](err)
	if !ok {
		t.Errorf("%v is a %T, not an *Error", err, err)
		return
	}
	if fault.File == "" || fault.Line < 1 || fault.Unwrap() == nil {
		t.Errorf("%#v does not point", fault)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
}

func open(t *testing.T, file string) *os.File {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// compare checks got against the golden file, or writes it with -update.
func compare(t *testing.T, golden, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
