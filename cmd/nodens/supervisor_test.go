package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without the flag, nodens uses a supervisor if sockets may be redirected.
func TestSupervised(t *testing.T) {
	for _, tc := range []struct {
		args, redirect string // redirect is the Corefile's
		want           bool
	}{
		{"", "", false},
		{"", "redirect off", false},
		{"", "redirect on", true},
		{"", "redirect auto", true},
		{"-supervise", "", true},
		{"-supervise=false", "redirect on", false},
		{"", "nonsense", false}, // the daemon reports it and exits
	} {
		file := filepath.Join(t.TempDir(), "Corefile")
		if err := os.WriteFile(file, []byte(". {\n bind 127.0.0.1\n forward . 192.0.2.1\n "+tc.redirect+"\n}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := parseFlags(append(strings.Fields(tc.args), "-conf", file), &bytes.Buffer{})
		if err != nil {
			t.Fatalf("%s: %v", tc.args, err)
		}
		f.Getenv = func(string) string { return "" }
		f.resolve()
		if got := f.supervised(); got != tc.want {
			t.Errorf("flags %q, Corefile %q: supervised %t, want %t", tc.args, tc.redirect, got, tc.want)
		}
	}
}
