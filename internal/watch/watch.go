// Package watch follows the content of files.
package watch

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settleTime is the time between the first event of a burst and the check of the
// content. It lets a writer that truncates the file first finish.
const settleTime = 50 * time.Millisecond

// pollInterval is the time between checks if the kernel refuses a watch. The kernel
// limits the number of watches of a user.
const pollInterval = 5 * time.Second

// Sum identifies the content of a list of files.
type Sum [sha256.Size]byte

// SumOf hashes the content of the files. A file that cannot be read changes the hash
// too.
func SumOf(paths []string) Sum {
	h := sha256.New()
	for _, p := range paths {
		n, err := sumFile(h, p)
		fmt.Fprintf(h, "\x00%s\x00%d\x00%t\x00", p, n, err == nil)
	}
	return Sum(h.Sum(nil))
}

// sumFile adds the content of a file to h.
func sumFile(h io.Writer, path string) (int64, error) {
	f, err := open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(h, io.LimitReader(f, MaxHosts+1))
}

// Files calls changed whenever the content of paths changes, until ctx is done. last
// is the result of SumOf before the caller read the files, so that no change is
// missed. Files sees writes, renames into place, and the symlink swap by which the
// kubelet updates a mounted ConfigMap. If interval is not 0, it also checks at that
// interval, for file systems that do not notify.
func Files(ctx context.Context, paths []string, last Sum, interval time.Duration, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return poll(ctx, paths, last, max(interval, pollInterval), changed)
	}
	defer w.Close()
	var names map[string]bool
	check := func() {
		names = addDirs(w, paths)
		if now := SumOf(paths); now != last {
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
		case e := <-w.Events:
			if settled == nil && names[filepath.Base(e.Name)] {
				settled = time.After(settleTime)
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

// poll is Files without notifications from the kernel.
func poll(ctx context.Context, paths []string, last Sum, interval time.Duration, changed func()) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		if now := SumOf(paths); now != last {
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

// addDirs watches the directory of every path, and those of the files that symlinks
// on the way point to. It ignores failures; the interval covers those directories. It
// returns the base names of these files and directories. Events of other names do not
// matter.
func addDirs(w *fsnotify.Watcher, paths []string) map[string]bool {
	names := make(map[string]bool)
	add := func(p string) {
		dir := filepath.Dir(p)
		_ = w.Add(dir) // no effect if it is watched already
		names[filepath.Base(p)], names[filepath.Base(dir)] = true, true
	}
	for _, p := range paths {
		const maxLinks = 40 // the kernel's own limit, include/linux/namei.h
		for range maxLinks {
			add(p)
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
			add(real)
		}
	}
	return names
}
