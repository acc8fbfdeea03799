package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// layoutVersion names the directory of the pinned maps. Increase it with every change
// of their keys, values, sizes or meaning. A test compares their layout with the
// recorded one.
const layoutVersion = 1

// linksDir is the directory of the links, beside the maps in a version's directory.
// Names in a BPF file system cannot contain a dot.
const linksDir = "links"

var versionName = regexp.MustCompile(`^v[1-9][0-9]*$`)

func versionDir(pinDir string, version int) string {
	return filepath.Join(pinDir, "v"+strconv.Itoa(version))
}

// versions returns the directories of all versions. pinDir may be missing.
func versions(pinDir string) ([]string, error) {
	entries, err := os.ReadDir(pinDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned versions: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() && versionName.MatchString(e.Name()) {
			dirs = append(dirs, filepath.Join(pinDir, e.Name()))
		}
	}
	return dirs, nil
}

// makePinDirs creates a version's directories. Outside a BPF file system it creates
// nothing and returns ErrNoBPFFS.
func makePinDirs(dir string) error {
	existing := dir
	for {
		if _, err := os.Stat(existing); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("pin directory: %w", err)
		}
		existing = filepath.Dir(existing)
	}
	if err := checkBPFFS(existing); err != nil {
		return fmt.Errorf("pin directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, linksDir), 0o700); err != nil {
		return explain("create pin directory", err)
	}
	return nil
}

func checkBPFFS(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if int64(fs.Type) != unix.BPF_FS_MAGIC {
		return ErrNoBPFFS
	}
	return nil
}
