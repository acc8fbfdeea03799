package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// exitStatus is an error that whoever caused it has told.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// supervised reports whether a worker is to run below a supervisor: unless the
// flag says so, where sockets are redirected, since only there somebody waits
// for the answer of one that died. What cannot be read is for the worker to tell.
func (f *flags) supervised() bool {
	if f.supervise != nil {
		return *f.supervise
	}
	cfg, err := f.ReadCorefile(func(error) {})
	return err == nil && cfg.Redirect().Mode != config.RedirectOff
}

// supervisor runs the daemon in a process below this one.
func supervisor(ctx context.Context, e env, f *flags) error {
	level := slog.LevelInfo
	if f.Quiet {
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: level})).With("process", "supervisor")
	// It keeps next to nothing, for as long as the node runs.
	debug.SetGCPercent(10)
	debug.FreeOSMemory()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	status, err := supervise.Run(handedOn(ctx, e.signals), supervise.Config{
		Program: supervise.Program{Path: executable(), Args: append([]string{os.Args[0]}, e.args...), Env: os.Environ()},
		Free:    func(r supervise.Report) { freePods(log, r) },
		Logger:  log,
	})
	if err == nil && status != 0 {
		err = exitStatus(status)
	}
	return err
}

// handedOn delivers what comes by signals, and SIGTERM when ctx is done.
func handedOn(ctx context.Context, signals <-chan os.Signal) <-chan os.Signal {
	all := make(chan os.Signal, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				all <- syscall.SIGTERM
				return
			case s := <-signals:
				all <- s
			}
		}
	}()
	return all
}

// executable is this program, even where its file has been replaced.
func executable() string {
	path, err := os.Executable()
	if err == nil {
		if _, err = os.Stat(path); err == nil {
			return path
		}
	}
	return "/proc/self/exe"
}

// freePods ends the sockets that wait for an answer in vain, so that their owners
// ask again at once: the fallback, as the kernel sends them there by now.
func freePods(log *slog.Logger, r supervise.Report) {
	for _, target := range r.Targets {
		n, err := bpf.DestroyPodSockets(r.Cgroup, "/proc", target)
		if err != nil {
			log.Error("look-ups under way may have to wait for their timeout", "target", target, "error", err)
		}
		log.Info("look-ups under way ask again", "target", target, "sockets", n)
	}
}
