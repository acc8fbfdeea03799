package redirect

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/tick"
)

const (
	// watchInterval is the time between two checks. The kernel has no events for a
	// link that is detached or a process of another version that dies.
	watchInterval = 4 * time.Second
	// watchPause is the least time between two checks, if another process changes pins
	// all the time.
	watchPause = 100 * time.Millisecond
	// updateInterval is the time between two looks at other programs.
	updateInterval = time.Minute
	// lookupTime is the time after which lookups that other versions redirected
	// have ended.
	lookupTime = 10 * time.Second
)

// watcher repairs what redirects: programs, links, maps and their pins. Only one
// goroutine uses it.
type watcher struct {
	kernel   *bpf.Redirect
	status   *status
	log      *slog.Logger
	kubepods string // directory
	dirs     []string
	free     func(dead bool) // see closeEscaped
	update   func() error    // of what depends on other programs
	replaced *atomic.Bool    // another process redirects

	updatedAt  time.Time
	repairedAt time.Time // when programs were attached; other versions' stay until lookupTime later
	last       bpf.Steering
	failure    string // the last error of updating, or of removing other versions
}

func newWatcher(s *session) *watcher {
	pins := s.kernel.PinDir()
	return &watcher{
		kernel: s.kernel, status: s.status, log: s.cfg.Logger, kubepods: s.kubepods, free: s.sockets.closeEscaped, update: s.updateLastResort, replaced: &s.replaced, repairedAt: time.Now(),
		dirs: []string{filepath.Dir(s.kubepods), filepath.Dir(filepath.Dir(pins)), filepath.Dir(pins), pins, filepath.Join(pins, "links")},
	}
}

// run checks after changes in the directories and every watchInterval, until ctx is
// done.
func (w *watcher) run(ctx context.Context) {
	notify, err := fsnotify.NewWatcher()
	var events <-chan fsnotify.Event
	var lost <-chan error
	if err != nil {
		w.log.Warn("cannot watch redirection: nodens checks at intervals", "interval", watchInterval, "error", err)
	} else {
		defer notify.Close()
		events, lost = notify.Events, notify.Errors
	}
	timer := tick.Every(watchInterval)
	defer timer.Stop()
	for {
		if notify != nil {
			for _, dir := range w.dirs {
				_ = notify.Add(dir) // adding it twice is no error; the ticks cover a failure
			}
		}
		w.check()
		if !pause(ctx, watchPause) {
			return
		}
		if !wait(ctx, timer.C, events, lost) {
			return
		}
	}
}

// wait returns true at a tick, and when an entry of a directory is made or removed.
func wait(ctx context.Context, tick <-chan struct{}, events <-chan fsnotify.Event, lost <-chan error) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case <-lost: // an overflow of events, usually
			return true
		case e := <-events:
			if e.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename) {
				return true
			}
		}
	}
}

// check repairs, and reports the state.
func (w *watcher) check() {
	who, restored, open, err := w.kernel.Repair()
	if open {
		w.repairedAt = time.Now()
		w.free(w.last == bpf.Others)
	}
	if err != nil {
		w.status.fail(err)
		return
	}
	if restored != "" {
		w.log.Warn("redirection had changed, repaired", "object", restored)
	}
	w.report(who)
	if time.Since(w.updatedAt) >= updateInterval {
		w.updatedAt, err = time.Now(), w.update()
	}
	if time.Since(w.repairedAt) >= lookupTime {
		err = errors.Join(err, w.kernel.RemoveOtherVersions())
	}
	w.failure = w.status.errorOnce(w.failure, "redirection is not up to date", err)
}

// report sets the state, and logs it if it has changed.
func (w *watcher) report(who bpf.Steering) {
	changed := who != w.last
	w.replaced.Store(who == bpf.Others)
	w.last = who
	switch who {
	case bpf.Others:
		w.status.set(stateReplaced)
		if changed {
			w.log.Info("another process redirects sockets now")
		}
	case bpf.TornDown:
		w.status.set(stateTornDown)
		if changed {
			w.log.Warn("an operator removed redirection with nodens teardown: restart nodens to redirect sockets again")
		}
	default:
		w.status.on()
		if changed {
			w.log.Info("this process redirects sockets again")
		}
	}
}
