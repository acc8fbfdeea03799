package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// A full disk leaves the old PID file and nothing else.
func TestPIDFileOnAFullDisk(t *testing.T) {
	lab.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		lab.Skip(t, "mount tmpfs: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "pid")
	var first, second pidFile
	if err := first.write(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 16<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	if err := second.write(path, 2); err == nil {
		t.Error("no error")
	}
	if text, err := os.ReadFile(path); string(text) != "1\n" {
		t.Errorf("PID file: %q, %v", text, err)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	if err := second.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the other process's file: %v", err)
	}
}
