package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// irregular returns the names of a FIFO, a directory and a device. It also opens the
// FIFO in a way that a reader would wait for its end.
func irregular(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = held.Close() })
	link := filepath.Join(dir, "link")
	if err := os.Symlink(fifo, link); err != nil {
		t.Fatal(err)
	}
	return []string{fifo, link, dir, "/dev/zero"}
}

func TestReadFile(t *testing.T) {
	for _, name := range irregular(t) {
		if _, err := ReadFile(name, 10); !errors.Is(err, errNotRegular) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := fs.ReadFile(Root{}, name[1:]); !errors.Is(err, errNotRegular) {
			t.Errorf("%s in Root: %v", name, err)
		}
	}
	if text, err := ReadFile(os.DevNull, 10); len(text) != 0 || err != nil {
		t.Errorf("%s: %q, %v", os.DevNull, text, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if _, err := ReadFile(file, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(t, file, "0123456789")
	if text, err := ReadFile(file, 10); string(text) != "0123456789" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := ReadFile(file, 9); text != nil || !errors.Is(err, errTooLarge) || !strings.Contains(err.Error(), file) {
		t.Errorf("too large: %q, %v", text, err)
	}
	if found, err := fs.Glob(Root{}, file[1:len(file)-1]+"*"); !slices.Equal(found, []string{file[1:]}) || err != nil {
		t.Errorf("Glob: %q, %v", found, err)
	}
}

// A file that becomes a FIFO and a file again is two changes.
func TestSumOfIrregularFiles(t *testing.T) {
	seen := make(map[Sum]string)
	for _, name := range irregular(t) {
		s := SumOf([]string{name})
		if seen[s] != "" {
			t.Errorf("%s and %s have the same sum", name, seen[s])
		}
		seen[s] = name
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	empty := SumOf([]string{file})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if SumOf([]string{file}) == empty {
		t.Error("a FIFO has the sum of an empty file")
	}
}
