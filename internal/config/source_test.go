package config

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

// hostDir returns an empty directory and the Source of a process in it.
func hostDir(t *testing.T) (string, Source) {
	t.Helper()
	dir := t.TempDir()
	return dir, Source{Files: os.DirFS("/"), Dir: dir}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestImportPaths imports absolute and relative paths and patterns. The files are
// symlinks, as in a mounted ConfigMap.
func TestImportPaths(t *testing.T) {
	dir, src := hostDir(t)
	write(t, dir+"/mount/..2026/zone.inc", "errors\n")
	write(t, dir+"/outside/log.inc", "import ../mount/zone.inc\nlog\n")
	for link, to := range map[string]string{
		"/mount/..data": "..2026", "/mount/zone.inc": "..data/zone.inc", "/mount/out.inc": "../outside/log.inc",
	} {
		if err := os.Symlink(to, dir+link); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ corefile, pattern, want string }{
		{"Corefile", "mount/zone.inc", "mount/zone.inc"},
		{"Corefile", "./mount/z*.inc", "mount/zone.inc"},
		{"Corefile", "m*/zone.inc", "mount/zone.inc"},
		{"mount/Corefile", "zone.inc", "mount/zone.inc"},
		{"mount/Corefile", "o*.inc", "mount/out.inc mount/zone.inc"},
		{"mount/Corefile", "../outside/log.inc", "outside/log.inc mount/zone.inc"},
		{"mount/Corefile", "../outside/l*.inc", "outside/log.inc mount/zone.inc"},
		{"Corefile", dir + "/mount/zone.inc", dir + "/mount/zone.inc"},
		{"Corefile", dir + "/mount/zone*", dir + "/mount/zone.inc"},
		{dir + "/mount/Corefile", "z*.inc", dir + "/mount/zone.inc"},
	} {
		cfg, err := Parse(c.corefile, ". {\n  health\n  import "+c.pattern+"\n}\n", src)
		if err != nil {
			t.Errorf("%s, import %s: %v", c.corefile, c.pattern, err)
			continue
		}
		if want := append([]string{c.corefile}, strings.Fields(c.want)...); !slices.Equal(cfg.Files, want) {
			t.Errorf("%s, import %s: files %q, want %q", c.corefile, c.pattern, cfg.Files, want)
		}
	}
}

// TestReadFileRefuses checks that only regular files of at most 4 MiB are read.
func TestReadFileRefuses(t *testing.T) {
	dir, src := hostDir(t)
	if err := syscall.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/dir/file", "")
	write(t, dir+"/large", strings.Repeat("#", maxFileSize+1))
	for name, want := range map[string]string{
		"fifo":      "open fifo: not a regular file",
		"dir":       "open dir: not a regular file",
		"/dev/null": "open /dev/null: not a regular file",
		"large":     "open large: larger than 4 MiB",
		"none":      "open none: no such file or directory",
	} {
		text, err := src.ReadFile(name)
		if err == nil || err.Error() != want || text != nil {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if text, err := src.ReadFile("dir/file"); err != nil || len(text) != 0 {
		t.Errorf("an empty file: %q, %v", text, err)
	}
	if _, err := (Source{}).ReadFile("dir/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file system: %v", err)
	}
}
