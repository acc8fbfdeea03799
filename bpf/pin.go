package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// layoutVersion, a number, names the directory of the pinned maps. Increase it with
// every change of their keys, values, sizes or meaning. A test compares their layout
// with the recorded one. Every version has the maps canary and heartbeat with the
// same keys and values, so that each can see whether the others' processes live.
// A variable, so that a test can link a program of another version.
var layoutVersion = "2"

// lockTimeout is how long to wait for another process that changes the pins. A frozen
// process must not block others.
const lockTimeout = time.Second

// lockPins keeps processes of all versions from changing pins at the same time. It
// goes on without the lock after lockTimeout. Take it before Redirect.mu, which
// heartbeats need.
func lockPins(pinDir string) (unlock func()) {
	f, err := os.Open(pinDir)
	if err != nil {
		return func() {}
	}
	for late := time.Now().Add(lockTimeout); time.Now().Before(late); time.Sleep(time.Millisecond) {
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			break
		}
	}
	return func() { _ = f.Close() }
}

// useDir marks a version's directory as used until the file is closed or the process
// ends. The caller has the lock of the pins.
func useDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("use pin directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("use pin directory: %w", os.NewSyscallError("flock", err)), f.Close())
	}
	return f, nil
}

// isUsed reports whether a process uses a version's directory. The caller has the lock
// of the pins.
func isUsed(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, os.NewSyscallError("flock", err)
}

// linksDir is the directory of the links, beside the maps in a version's directory.
// Names in a BPF file system cannot contain a dot.
const linksDir = "links"

var versionName = regexp.MustCompile(`^v[1-9][0-9]*$`)

func versionDir(pinDir, version string) string { return filepath.Join(pinDir, "v"+version) }

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

// makePinDirs creates a directory and those above it. Outside a BPF file system it
// creates nothing and returns ErrNoBPFFS.
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
	if err := os.MkdirAll(dir, 0o700); err != nil {
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

// PinDir is the directory of this version's pins.
func (r *Redirect) PinDir() string { return r.dir }
