package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveSnapshot expects that other files stay, with their directory, and that an
// empty directory goes.
func TestRemoveSnapshot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nodens")
	path := filepath.Join(dir, "cache")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		t.Helper()
		if err := removeSnapshot(path); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if os.IsNotExist(err) {
			return -1
		}
		return len(files)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cache", "cache.sock", "cache.123", "other"} {
		write(name)
	}
	if n := left(); n != 1 {
		t.Errorf("%d files are left, want the other one", n)
	}
	if err := os.Remove(filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n := left(); n != -1 {
			t.Errorf("the directory is left, with %d files", n)
		}
	}
}
