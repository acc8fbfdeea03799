package dnsname

import (
	"bytes"
	"strings"
	"testing"
)

func TestIsBelow(t *testing.T) {
	for _, tt := range []struct {
		name, suffix string
		want         bool
	}{
		{"a.example.org.", "example.org.", true},
		{"A.b.Example.org.", "example.ORG.", true},
		{"example.org.", ".", true},
		{"example.org.", "example.org.", false},
		{"notexample.org.", "example.org.", false},
		{"org.", "example.org.", false},
		// The bytes of the suffix, inside a label.
		{`x\007example\003org.`, "example.org.", false},
	} {
		names, err := PackAll([]string{tt.name, tt.suffix})
		if err != nil {
			t.Fatal(err)
		}
		if got := IsBelow(names[0], names[1]); got != tt.want {
			t.Errorf("%s below %s: %v, want %v", tt.name, tt.suffix, got, tt.want)
		}
	}
}

func TestPack(t *testing.T) {
	longest := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61) + "."
	name, err := Pack(longest)
	if err != nil || len(name) != MaxLen {
		t.Errorf("longest name: %d bytes, %v", len(name), err)
	}
	if name, err := Pack("Www.Example."); err != nil || !bytes.Equal(name, []byte("\x03www\x07example\x00")) {
		t.Errorf("got %q, %v", name, err)
	}
	for _, bad := range []string{"a..b.", "x" + longest, strings.Repeat("a", 64) + "."} {
		if name, err := Pack(bad); err == nil {
			t.Errorf("%s: got %q, want an error", bad, name)
		}
	}
}
