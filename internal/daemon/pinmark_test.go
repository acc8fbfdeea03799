package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPinMark expects a process that does not see pins to refuse to start while the mark
// exists, and not to remove the mark. teardown removes it, and a reboot ends it.
func TestPinMark(t *testing.T) {
	snapshot := filepath.Join(t.TempDir(), "nodens", "cache")
	b := base{opts: &Options{CacheSnapshot: snapshot}, log: slog.New(slog.DiscardHandler)}
	b.opts.Redirect.PinDir = filepath.Join(t.TempDir(), "pins") // no bpffs
	m := newPinMark(b)
	if err := m.check(t.Context()); err != nil {
		t.Errorf("without a mark: %v", err)
	}
	m.set(true)
	m.set(false)
	if err := m.check(t.Context()); err == nil || !strings.Contains(err.Error(), m.path) {
		t.Errorf("with a mark: %v", err)
	}
	if err := os.WriteFile(m.path, []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.check(t.Context()); err != nil {
		t.Errorf("after a reboot: %v", err)
	}
	unreadable := pinMark{path: filepath.Join(m.path, "cache.pins"), pinDir: m.pinDir} // not a directory
	if err := unreadable.check(t.Context()); err != nil {
		t.Errorf("with a mark that cannot be read: %v", err)
	}
	if err := removeSnapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	if err := m.check(t.Context()); err != nil {
		t.Errorf("after teardown: %v", err)
	}
	b.opts.CacheSnapshot = ""
	m = newPinMark(b)
	m.set(true)
	if err := m.check(t.Context()); err != nil {
		t.Errorf("without -cache-snapshot: %v", err)
	}
	if files, _ := os.ReadDir(filepath.Dir(filepath.Dir(snapshot))); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
}
