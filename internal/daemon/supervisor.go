package daemon

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// Supervise runs the daemon in a child process, this program with args, until ctx is
// done. It returns the exit status of the last one.
func Supervise(ctx context.Context, o *Options, args []string) (status int, err error) {
	log := slog.New(o.LogHandler(o.Stderr, o.LogLevel)).With("process", "supervisor")
	// Keep the heap small: the supervisor allocates little and runs as long as the node.
	debug.SetGCPercent(10)
	debug.FreeOSMemory()
	runtime.GOMAXPROCS(1) // so that a heartbeat wakes one thread
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sockets := &podSockets{log: log}
	return supervise.Run(relaySignals(ctx, o.Signals), supervise.Config{
		Program:    supervise.Program{Path: executable(), Args: append([]string{os.Args[0]}, args...), Env: os.Environ()},
		Disconnect: sockets.close,
		Logger:     log,
	})
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

// podSockets closes pods' sockets that wait for an answer of a worker.
type podSockets struct {
	log    *slog.Logger
	reason string // why it failed the last time: logged once
}

// close closes the sockets of a worker that died or hangs, so that their owners retry at
// once. The kernel then sends them to the fallback.
func (p *podSockets) close(r supervise.Report) {
	reason := ""
	for _, target := range r.Targets {
		n, err := bpf.DestroyPodSockets(r.Cgroup, "/proc", target, bpf.UDP)
		if err != nil {
			reason = err.Error()
			if reason != p.reason {
				p.log.Error("closing pods' sockets failed: their lookups may wait for a timeout", "target", target, "error", err)
				p.reason = reason
			}
		}
		if n > 0 {
			p.log.Info("pods' lookups in flight are retried", "target", target, "sockets", n)
		}
	}
	p.reason = reason
}
