package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whether a process uses the pins must be known before teardown removes something.
func TestTeardownCannotReadPins(t *testing.T) {
	var o Options
	o.Redirect.PinDir = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(o.Redirect.PinDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Teardown{Wait: time.Minute}).awaitStop(t.Context(), &o); err == nil {
		t.Error("no error")
	}
}
