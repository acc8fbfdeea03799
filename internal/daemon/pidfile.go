package daemon

import (
	"fmt"
	"os"
)

// pidFile is the file of -pidfile. It is empty until it is written.
type pidFile struct {
	path string
	file os.FileInfo
}

// write replaces the file at path by a new one that holds pid. It does nothing if
// path is empty.
func (p *pidFile) write(path string, pid int) error {
	if path == "" {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	err := os.WriteFile(tmp, fmt.Appendln(nil, pid), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		p.path = path
		p.file, err = os.Lstat(path)
	}
	if err != nil {
		_ = os.Remove(tmp) // it may be incomplete, for example on a full disk
		return fmt.Errorf("write PID file: %w", err)
	}
	return nil
}

// remove removes the file unless it is gone or a newer process has replaced it, as
// in a surge upgrade.
func (p *pidFile) remove() error {
	if p.path == "" {
		return nil
	}
	now, err := os.Lstat(p.path)
	if err != nil || !os.SameFile(now, p.file) {
		return nil
	}
	return os.Remove(p.path)
}
