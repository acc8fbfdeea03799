package watch

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sizes of files, in bytes. SumOf hashes at most MaxHosts.
const (
	MaxResolvConf = 64 << 10
	MaxPEM        = 4 << 20
	MaxHosts      = 64 << 20
)

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("too large")
)

// ReadFile reads a regular file, or /dev/null, of at most max bytes. It does not
// block on a FIFO or another device.
func ReadFile(name string, max int64) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(text)) > max {
		err = &fs.PathError{Op: "read", Path: name, Err: errTooLarge}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// open opens a regular file. It checks the kind first, because opening a device may
// have an effect. It checks again afterwards, because the file may have been
// replaced in between.
func open(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	irregular := &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	if !isData(info) {
		return nil, irregular
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !isData(info) {
		err = irregular
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// isData reports whether a file is regular, or /dev/null, which a hosts directive may
// name.
func isData(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	null := ok && info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == unix.Mkdev(1, 3)
	return info.Mode().IsRegular() || null
}

// Root is the file system below a directory, as an fs.FS. Open opens regular files
// only and does not block.
type Root struct{ Dir string } // absolute; empty: /

// Open implements fs.FS.
func (r Root) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return open(path.Join("/", r.Dir, name))
}

// Stat implements fs.StatFS.
func (r Root) Stat(name string) (fs.FileInfo, error) { return os.Stat(path.Join("/", r.Dir, name)) }

// ReadDir implements fs.ReadDirFS.
func (r Root) ReadDir(name string) ([]fs.DirEntry, error) {
	return os.ReadDir(path.Join("/", r.Dir, name))
}
