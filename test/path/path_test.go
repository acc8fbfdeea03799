package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPath checks the length of a hit and of a miss. It builds the command with
// coverage, as "make path" does.
func TestPath(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "path")
	build := exec.CommandContext(t.Context(), "go", "build", "-cover", "-covermode=atomic", "-coverpkg=../../...", "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), bin)
	run.Env = append(os.Environ(), "GOCOVERDIR="+t.TempDir())
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
