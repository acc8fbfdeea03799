package daemon

import (
	"fmt"
	"os"
)

// pidFile is the file of -pidfile, once it is written.
type pidFile struct {
	path string
	file os.FileInfo
}

// write puts a new file with a process ID in the place of path; an empty path
// asks for none.
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
		return fmt.Errorf("write PID file: %w", err)
	}
	return nil
}

// remove removes the file unless it is gone, or a newer process has put its
// own in its place, as in a surge upgrade.
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
