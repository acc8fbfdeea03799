package watch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watching runs Files on path and returns a channel with its calls of changed.
func watching(t *testing.T, path string, interval time.Duration) <-chan struct{} {
	t.Helper()
	changed, last := make(chan struct{}, 100), SumOf([]string{path})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Files(ctx, []string{path}, last, interval, func() { changed <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Files: %v", err)
		}
	})
	return changed
}

func waitFor(t *testing.T, changed <-chan struct{}, change string) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not seen", change)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "Corefile")
	write(t, path, "one")
	changed := watching(t, path, 0)
	write(t, path, "two")
	waitFor(t, changed, "a write")

	write(t, path+".new", "three")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, changed, "a rename into place")

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, changed, "a removal")
	write(t, path, "four")
	waitFor(t, changed, "a new file")

	// Writing the same content or another file changes nothing: the next call is for
	// the write after that.
	write(t, path, "four")
	write(t, filepath.Join(dir, "other"), "x")
	write(t, path, "five")
	waitFor(t, changed, "a write after two without a change")
}

// TestConfigMap swaps the ..data symlink as the kubelet does.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "Corefile"), text)
		tmp := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(name, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..2026_1", "one")
	path := filepath.Join(dir, "Corefile")
	if err := os.Symlink(filepath.Join("..data", "Corefile"), path); err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if names := addDirs(w, []string{path}); !names["..data"] || !names["Corefile"] || names["other"] || len(names) != 4 { // with both directories
		t.Errorf("events of %v", names)
	}
	changed := watching(t, path, 0)
	version("..2026_2", "two")
	waitFor(t, changed, "the first swap")
	if err := os.RemoveAll(filepath.Join(dir, "..2026_1")); err != nil {
		t.Fatal(err)
	}
	version("..2026_3", "three")
	waitFor(t, changed, "the second swap")
}

// TestSymlinkTarget follows a symlink whose target changes in another directory, as
// /etc/resolv.conf does.
func TestSymlinkTarget(t *testing.T) {
	real := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, real, "one")
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	changed := watching(t, path, 0)
	write(t, real, "two")
	waitFor(t, changed, "a write to the target")
}

// TestChangeBeforeWatch changes the file before the watch begins.
func TestChangeBeforeWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "Corefile")
	write(t, path, "one")
	read := SumOf([]string{path})
	write(t, path, "two")
	ctx, cancel := context.WithCancel(t.Context())
	called := false
	if err := Files(ctx, []string{path}, read, 0, func() { called = true; cancel() }); err != nil || !called {
		t.Errorf("called %t, error %v", called, err)
	}
}
