package cmdline

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// TestWriteJSON: the text has no character that controls a terminal, and the values are
// as before.
func TestWriteJSON(t *testing.T) {
	want := map[string]string{"name": "a\x1b[2J\x7f\u009b31m\u202e\U000e0001\u00e9\n<&>\"\\"}
	var b strings.Builder
	if err := WriteJSON(&b, want); err != nil {
		t.Fatal(err)
	}
	if c := regexp.MustCompile(`[^\n\PC]`).FindString(b.String()); c != "" {
		t.Errorf("%q in %s", c, b.String())
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got["name"] != want["name"] {
		t.Errorf("%q, %v", got, err)
	}
	if err := WriteJSON(&b, func() {}); err == nil {
		t.Error("no error")
	}
}
