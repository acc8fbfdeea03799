package config

import (
	"errors"
	"strings"
	"testing"
)

// TestBad parses the Corefiles in testdata/bad and compares the errors byte for
// byte.
func TestBad(t *testing.T) {
	compareCases(t, "testdata/bad/*.txtar", "error", func(t *testing.T, c corefileCase) string {
		cfg, err := c.parse()
		if err == nil {
			t.Fatal("no error")
		}
		if cfg != nil {
			t.Error("Parse returned a Config and an error")
		}
		for _, err := range flatten([]error{err}) {
			checkError(t, err)
		}
		return err.Error() + "\n"
	})
}

// checkError checks that err is an *Error that names a line of a file.
func checkError(t *testing.T, err error) {
	t.Helper()
	fault, ok := errors.AsType[*Error](err)
	if !ok {
		t.Errorf("%v is a %T, not an *Error", err, err)
		return
	}
	if fault.File == "" || fault.Line < 1 || fault.Unwrap() == nil {
		t.Errorf("%#v names no line", fault)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
}
