package config

import (
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata and docs")

// corefileCase is NAME/Corefile of an archive and the other files below NAME.
type corefileCase struct {
	name  string
	text  string
	files fs.FS
}

func (c corefileCase) parse() (*Config, error) {
	env := map[string]string{"NODENS_TEST_HOST": "192.0.2.7"}
	return Parse("Corefile", c.text, Source{Files: c.files, Getenv: func(name string) string { return env[name] }})
}

// readArchive returns the cases in a txtar file.
func readArchive(t testing.TB, file string) (*txtar.Archive, []corefileCase) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files, err := txtar.FS(a)
	if err != nil {
		t.Fatal(err)
	}
	var cases []corefileCase
	for _, f := range a.Files {
		name, base := path.Split(f.Name)
		if base != "Corefile" {
			continue
		}
		c := corefileCase{name: path.Clean(name), text: string(f.Data)}
		if c.files, err = fs.Sub(files, c.name); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return a, cases
}

// archives returns the txtar files that match pattern.
func archives(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives match %s: %v", pattern, err)
	}
	return files
}

// compareCases runs a subtest for each case and compares what got returns with
// the case's file golden. With -update it writes that file.
func compareCases(t *testing.T, pattern, golden string, got func(*testing.T, corefileCase) string) {
	for _, file := range archives(t, pattern) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, cases := readArchive(t, file)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					got := got(t, c)
					if *update {
						setFile(a, c.name+"/"+golden, got)
						return
					}
					want, err := fs.ReadFile(c.files, golden)
					if err != nil {
						t.Fatal(err)
					}
					if got != string(want) {
						t.Errorf("got:\n%swant:\n%s", got, want)
					}
				})
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func setFile(a *txtar.Archive, name, text string) {
	for i, f := range a.Files {
		if f.Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
}
