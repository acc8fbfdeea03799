package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a burst of file events may go on before the content is
// looked at: writers that truncate first are given time to write.
const settle = 50 * time.Millisecond

// content identifies what a set of files held at one moment.
type content [sha256.Size]byte

// watchFiles calls changed whenever the paths do not hold what they held, until
// ctx is done. last is what the caller took before it read them, so that no
// change between its reading and the watch is missed. A write is seen, a rename
// into place, and the symlink swap by which the kubelet updates a mounted
// ConfigMap; interval, if not 0, is how often to look without being told, for
// file systems that do not tell.
func watchFiles(ctx context.Context, paths []string, last content, interval time.Duration, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return pollFiles(ctx, paths, last, max(interval, pollInterval), changed)
	}
	defer w.Close()
	check := func() {
		watchDirs(w, paths)
		if now := contentOf(paths); now != last {
			last = now
			changed()
		}
	}
	var tick <-chan time.Time
	if interval > 0 {
		t := time.NewTicker(interval)
		defer t.Stop()
		tick = t.C
	}
	check()
	var settled <-chan time.Time // set by the first event of a burst
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			check()
		case <-w.Errors: // events were lost
			check()
		case <-tick:
			check()
		}
	}
}

// pollInterval is how often files are read where the kernel gives no watch,
// for which there is a limit for each user.
const pollInterval = 5 * time.Second

// pollFiles is watchFiles without the kernel's help.
func pollFiles(ctx context.Context, paths []string, last content, interval time.Duration, changed func()) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		if now := contentOf(paths); now != last {
			last = now
			changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// watchDirs watches the directory of every path, and of every file that a
// symlink on the way points to. Adding one again does nothing; one that cannot
// be watched is left to the interval.
func watchDirs(w *fsnotify.Watcher, paths []string) {
	for _, p := range paths {
		const maxLinks = 40 // the kernel's own limit, include/linux/namei.h
		for range maxLinks {
			_ = w.Add(filepath.Dir(p))
			target, err := os.Readlink(p)
			if err != nil {
				break
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(p), target)
			}
			p = target
		}
		if real, err := filepath.EvalSymlinks(p); err == nil {
			_ = w.Add(filepath.Dir(real))
		}
	}
}

// contentOf hashes the content of the files, and which of them cannot be read.
func contentOf(paths []string) content {
	h := sha256.New()
	for _, p := range paths {
		b, err := readRegular(p)
		fmt.Fprintf(h, "%s\x00%d\x00%t\x00", p, len(b), err == nil)
		h.Write(b)
	}
	return content(h.Sum(nil))
}

// readRegular reads a regular file; opening a FIFO would block.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return os.ReadFile(path)
}
