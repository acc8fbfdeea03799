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

// exitStatus is the exit status of the worker, which has logged the error.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// supervised reports whether the daemon runs in a child process. By default it does
// if sockets may be redirected, because only then do clients wait after the daemon
// dies. The daemon reports the error if the Corefile cannot be read.
func (f *flags) supervised() bool {
	if f.supervise != nil {
		return *f.supervise
	}
	cfg, err := f.ReadCorefile(func(error) {})
	return err == nil && cfg.Redirect().Mode != config.RedirectOff
}

// supervisor runs the daemon in a child process.
func supervisor(ctx context.Context, e env, f *flags) error {
	log := slog.New(f.LogHandler(e.Stderr, f.LogLevel)).With("process", "supervisor")
	// The supervisor uses little memory, but for as long as the node runs.
	debug.SetGCPercent(10)
	debug.FreeOSMemory()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	status, err := supervise.Run(relaySignals(ctx, e.signals), supervise.Config{
		Program:    supervise.Program{Path: executable(), Args: append([]string{os.Args[0]}, e.args...), Env: os.Environ()},
		Disconnect: func(r supervise.Report) { closePodSockets(log, r) },
		Logger:     log,
	})
	if err == nil && status != 0 {
		err = exitStatus(status)
	}
	return err
}

// relaySignals delivers signals, and SIGTERM when ctx is done.
func relaySignals(ctx context.Context, signals <-chan os.Signal) <-chan os.Signal {
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

// executable is the path of this program, even if its file has been replaced.
func executable() string {
	path, err := os.Executable()
	if err == nil {
		if _, err = os.Stat(path); err == nil {
			return path
		}
	}
	return "/proc/self/exe"
}

// closePodSockets closes pods' sockets that wait for an answer of the dead worker,
// so that their owners retry at once. The kernel then sends them to the fallback.
func closePodSockets(log *slog.Logger, r supervise.Report) {
	for _, target := range r.Targets {
		n, err := bpf.DestroyPodSockets(r.Cgroup, "/proc", target, bpf.UDP)
		if err != nil {
			log.Error("closing pods' sockets failed: their lookups may wait for a timeout", "target", target, "error", err)
		}
		log.Info("pods' lookups in flight are retried", "target", target, "sockets", n)
	}
}
