package config

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestGood parses testdata/good/NAME.corefile and compares its description
// with NAME.txt. The shapes are those of published node-local Corefiles.
func TestGood(t *testing.T) {
	t.Chdir("testdata/good")
	t.Setenv("NODENS_TEST_HOST", "192.0.2.7")
	files, err := filepath.Glob("*.corefile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".corefile"), func(t *testing.T) {
			c, err := Parse(file, open(t, file))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, strings.TrimSuffix(file, ".corefile")+".txt", describe(t, c))

			again, err := Parse(file, open(t, file))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(c, again) {
				t.Error("a second Parse of the file differs from the first")
			}
		})
	}
}

func describe(t *testing.T, c *Config) string {
	t.Helper()
	var text strings.Builder
	if err := c.Describe(&text); err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Warnings {
		checkError(t, w)
		text.WriteString("warning: " + w.Error() + "\n")
	}
	return text.String()
}
