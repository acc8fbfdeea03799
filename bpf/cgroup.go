package bpf

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rootCgroupID is the inode number of a cgroup hierarchy's root.
const rootCgroupID = 1

// cgroupID returns the id of a cgroup, which is the inode number of its cgroup v2
// directory. For another directory, or the root, it returns ErrCgroup.
func cgroupID(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCgroup, &os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	if int64(fs.Type) != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("%s: %w", dir, ErrCgroup)
	}
	id, _, err := inode(dir)
	if err != nil {
		return 0, err
	}
	if id == rootCgroupID {
		return 0, fmt.Errorf("%s is the root: %w", dir, ErrCgroup)
	}
	return id, nil
}

func inode(dir string) (ino, dev uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return st.Ino, uint64(st.Dev), nil
}

// ancestors returns the directories above a cgroup's in its mount, nearest first.
func ancestors(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	_, dev, err := inode(dir)
	if err != nil {
		return nil, err
	}
	var above []string
	for dir != "/" {
		dir = filepath.Dir(dir)
		_, d, err := inode(dir)
		if err != nil {
			return nil, err
		}
		if d != dev {
			break
		}
		above = append(above, dir)
	}
	return above, nil
}

// isAbove reports whether id is the programs' cgroup or one above it. The programs
// do not run for members of cgroups above it. Opting such a cgroup out would opt out
// all pods.
func isAbove(id uint64, cgroup string) (bool, error) {
	above, err := ancestors(cgroup)
	if err != nil {
		return false, err
	}
	for _, dir := range append(above, cgroup) {
		ino, _, err := inode(dir)
		if err != nil {
			return false, err
		}
		if ino == id {
			return true, nil
		}
	}
	return id == rootCgroupID, nil
}
