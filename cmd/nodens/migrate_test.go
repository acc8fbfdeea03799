package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/migrate"
)

var update = flag.Bool("update", false, "write the golden files")

// migrateFile runs the migrate command.
func migrateFile(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	e := env{args: append([]string{"migrate", "-image", "example.org/nodens:v1"}, args...), stdin: strings.NewReader(stdin), Env: terminal(&out, &errs), getenv: os.Getenv}
	err = run(t.Context(), e)
	return out.String(), errs.String(), err
}

// TestMigrate compares the output with golden files. A second migration must accept
// the output and not change it.
func TestMigrate(t *testing.T) {
	inputs, err := filepath.Glob("testdata/migrate/*.yaml")
	if err != nil || len(inputs) < 6 {
		t.Fatalf("%d inputs, error %v", len(inputs), err)
	}
	for _, in := range inputs {
		name := strings.TrimSuffix(filepath.Base(in), ".yaml")
		t.Run(name, func(t *testing.T) {
			args := migrateArgs(name)
			out, report, err := migrateFile(t, "", append(args, in)...)
			if (name == "refused") != errors.Is(err, errRefused) || err != nil && name != "refused" {
				t.Fatalf("%v\n%s", err, report)
			}
			golden(t, "testdata/migrate/"+name+".golden", out)
			golden(t, "testdata/migrate/"+name+".report", report)
			if name == "refused" {
				return
			}
			again, report, err := migrateFile(t, out, append(args, "-")...)
			if err != nil || again != out || strings.Contains(report, "Changes:") || !strings.Contains(report, "nodens accepts the Corefile") {
				t.Errorf("second migration: %v\n%s", err, report)
			}
		})
	}
}

// migrateArgs returns the flags for an input of testdata/migrate.
func migrateArgs(name string) []string {
	mode, redirect := strings.CutPrefix(name, "redirect-")
	switch {
	case redirect:
		return []string{"-redirect", mode}
	case strings.HasPrefix(name, "gardener"):
		return []string{"-assume-imports"}
	}
	return nil
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -run TestMigrate -update writes it):\n%s", path, got)
	}
}

// TestMigrateFiles reads the ConfigMap and the DaemonSet from separate files.
func TestMigrateFiles(t *testing.T) {
	text, err := os.ReadFile("testdata/migrate/cilium-lrp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	daemonSet, configMap, _ := strings.Cut(string(text), "---\n")
	dir := t.TempDir()
	var files []string
	for name, text := range map[string]string{"a.yaml": strings.TrimSpace(daemonSet), "b.yaml": configMap} {
		files = append(files, filepath.Join(dir, name))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, report, err := migrateFile(t, "", files...)
	if err != nil || strings.Count(out, "\n---\n") != 1 || !strings.Contains(report, "nodens accepts the Corefile") {
		t.Errorf("%v\n%s%s", err, report, out)
	}
	out, report, err = migrateFile(t, string(text), "-o", "report", "-")
	if err != nil || report != "" || !strings.HasPrefix(out, "Changes:\n") {
		t.Errorf("%v\n%s%s", err, report, out)
	}
}

func TestMigrateErrors(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
	}{
		{"nothing", "kind: Service\n", migrate.ErrNothing.Error()},
		{"empty", "", migrate.ErrNothing.Error()},
		{"not YAML", "kind: Service\n---\na: [\n", "standard input: yaml: line 3"},
		{"template", "kind: {{ .Kind }}\n", "render it first"},
		{"no object", "- a\n", "standard input:1: not a Kubernetes object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, _, err := migrateFile(t, tc.text, "-")
			if err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
				t.Errorf("error %v, want %s\n%s", err, tc.want, out)
			}
		})
	}
	for _, args := range [][]string{nil, {"-o", "json", "-"}, {"-image", "", "-"}, {"-redirect", "maybe", "-"}, {"-x"}} {
		if _, _, err := migrateFile(t, "", args...); !errors.Is(err, cmdline.ErrUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, _, err := migrateFile(t, "", "/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestMigrateWarns: migrate prints each warning of nodens check once.
func TestMigrateWarns(t *testing.T) {
	text, err := os.ReadFile("testdata/migrate/kubespray.yaml")
	if err != nil {
		t.Fatal(err)
	}
	surplus := strings.Replace(string(text), "denial 9984 5\n", "denial 9984 5 1 extra\n", 1)
	_, report, err := migrateFile(t, surplus, "-")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(report, "ConfigMap kube-system/nodelocaldns: Corefile:5: cache: "); n != 1 {
		t.Errorf("%d warnings of the argument, want 1\n%s", n, report)
	}
}
