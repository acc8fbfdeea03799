package daemon

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watching runs watchFiles on path and returns a channel of its reports.
func watching(t *testing.T, path string, interval time.Duration) <-chan struct{} {
	t.Helper()
	changed, last := make(chan struct{}, 100), contentOf([]string{path})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- watchFiles(ctx, []string{path}, last, interval, func() { changed <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watchFiles: %v", err)
		}
	})
	return changed
}

func await(t *testing.T, changed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not seen", what)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWatchFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "Corefile")
	write(t, path, "one")
	changed := watching(t, path, 0)
	write(t, path, "two")
	await(t, changed, "a write")

	write(t, path+".new", "three")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	await(t, changed, "a rename into place")

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, changed, "a removal")
	write(t, path, "four")
	await(t, changed, "a new file")

	// A write of the same content and one beside it are no changes: the next
	// report is for what comes after them.
	write(t, path, "four")
	write(t, filepath.Join(dir, "other"), "x")
	write(t, path, "five")
	await(t, changed, "a change after none")
}

// TestWatchConfigMap swaps the ..data symlink as the kubelet does.
func TestWatchConfigMap(t *testing.T) {
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
	changed := watching(t, path, 0)
	version("..2026_2", "two")
	await(t, changed, "the first swap")
	if err := os.RemoveAll(filepath.Join(dir, "..2026_1")); err != nil {
		t.Fatal(err)
	}
	version("..2026_3", "three")
	await(t, changed, "the second swap")
}

// TestWatchElsewhere follows a link whose target changes in its own directory,
// as /etc/resolv.conf does.
func TestWatchElsewhere(t *testing.T) {
	real := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, real, "one")
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	changed := watching(t, path, 0)
	write(t, real, "two")
	await(t, changed, "a write to the target")
}

// TestWatchMissesNothing changes the file before the watch begins.
func TestWatchMissesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "Corefile")
	write(t, path, "one")
	read := contentOf([]string{path})
	write(t, path, "two")
	ctx, cancel := context.WithCancel(t.Context())
	called := false
	if err := watchFiles(ctx, []string{path}, read, 0, func() { called = true; cancel() }); err != nil || !called {
		t.Errorf("called %t, error %v", called, err)
	}
}
