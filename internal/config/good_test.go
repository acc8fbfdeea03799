package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestGood parses the Corefiles in testdata/good and compares what Describe
// prints. Those in published.txtar have the shape of node-local Corefiles that
// other projects publish.
func TestGood(t *testing.T) {
	compareCases(t, "testdata/good/*.txtar", "printed", func(t *testing.T, c corefileCase) string {
		cfg, err := c.parse()
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.parse()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(cfg, again) {
			t.Error("a second Parse differs from the first")
		}
		return describe(t, cfg)
	})
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
