package redirect

import (
	"os"
	"path/filepath"
	"testing"
)

// A teardown by an operator holds for a worker that replaces a dead one.
func TestTeardownHoldsForTheNextWorker(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		dir := t.TempDir()
		mark := filepath.Join(dir, "torn_down")
		if err := os.Mkdir(mark, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := allowSteering(dir, restarted); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(mark); os.IsNotExist(err) == restarted {
			t.Errorf("restarted %t: stat of the mark: %v", restarted, err)
		}
	}
}
