package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/tick"
)

// supervisor is the state of Run, which owns it.
type supervisor struct {
	cfg      Config
	score    oomScore
	messages chan message
	shared   *os.File // of all workers
	worker   *worker  // nil between a death and the next start
	stopping bool
	last     int         // exit status of the previous worker
	backoff  backoff     // between workers
	restart  *time.Timer // set while worker is nil
	timeout  *tick.Timer // of the worker's watchdog

	stalls         stallLog
	disconnectedAt time.Time  // of the last disconnect in checkWorker
	disconnecting  sync.Mutex // one call of Disconnect at a time
	disconnects    sync.WaitGroup
}

// Run restarts the worker until one ends for good, and returns the exit status
// for the caller. It forwards signals; SIGTERM and SIGINT end it.
//
// It reaps every child of the process: the caller must have no others.
func Run(signals <-chan os.Signal, cfg Config) (status int, err error) {
	s := &supervisor{
		cfg: cfg.withDefaults(), messages: make(chan message),
		restart: time.NewTimer(0), timeout: tick.New(),
	}
	s.restart.Stop()
	defer s.timeout.Stop()
	if s.score, err = protectFromOOM(); err != nil {
		s.cfg.Logger.Warn("the kernel may kill the supervisor if memory runs out", "error", err)
	}
	if s.shared, err = newShared(); err != nil {
		s.cfg.Logger.Warn("creating the memory that workers share failed: a new worker will read the files", "error", err)
		if s.shared, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return 0, err
		}
	}
	defer s.shared.Close()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	defer s.disconnects.Wait()
	if err := s.start(false); err != nil {
		return 0, err
	}
	for {
		if done := s.step(signals, children); done {
			return s.last, nil
		}
	}
}

// step handles one event and reports whether Run is done.
func (s *supervisor) step(signals, children <-chan os.Signal) (done bool) {
	select {
	case sig := <-signals:
		return s.forward(sig)
	case <-children:
		s.reap()
	case m := <-s.messages:
		if m.from != s.worker {
			return false
		}
		if m.text != nil {
			s.heartbeat(m.text)
			return false
		}
		s.worker.closed = true
	case <-s.timeout.C:
		s.checkWorker()
		return false
	case <-s.restart.C:
		return s.startAgain()
	}
	if w := s.worker; w != nil && w.reaped && w.closed {
		return s.died(w)
	}
	return false
}

func (s *supervisor) start(again bool) error {
	w, err := startWorker(s.cfg.Program, again, s.shared, s.messages)
	if err != nil {
		return err
	}
	s.worker = w
	if err := s.score.apply(w.pid); err != nil {
		s.cfg.Logger.Warn("the kernel may kill the supervisor if memory runs out", "error", err)
	}
	w.watchdog.timeouts = timeouts{start: s.cfg.StartTimeout, kill: s.cfg.Timeout}
	s.timeout.Reset(w.watchdog.wait())
	return nil
}

// startAgain starts a worker after a death.
func (s *supervisor) startAgain() (done bool) {
	err := s.start(true)
	if err == nil {
		s.cfg.Logger.Info("worker restarted", "pid", s.worker.pid)
		return false
	}
	s.cfg.Logger.Error("restarting the worker failed", "error", err)
	s.restart.Reset(s.backoff.after(0))
	return false
}

// forward ends Run only if there is no worker.
func (s *supervisor) forward(sig os.Signal) (done bool) {
	ends := sig == syscall.SIGTERM || sig == syscall.SIGINT
	if s.worker == nil {
		return ends
	}
	if ends && !s.stopping {
		s.stopping = true
		s.worker.watchdog.timeouts = timeouts{start: s.cfg.StopTimeout, kill: s.cfg.StopTimeout}
	}
	if err := s.worker.signal(sig.(syscall.Signal)); err != nil {
		s.cfg.Logger.Error("forwarding a signal failed", "signal", sig, "error", err)
	}
	return false
}

// reap waits for all children that have ended, orphans included.
func (s *supervisor) reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if w := s.worker; w != nil && pid == w.pid {
			w.reaped, w.status = true, ws
			// Its end of the socket pair is closed, unless a child inherited it.
			_ = w.sock.SetReadDeadline(time.Now().Add(time.Second))
		}
	}
}

func (s *supervisor) heartbeat(text []byte) {
	w := s.worker
	if !bytes.Equal(text, w.text) {
		r, err := decodeReport(text)
		if err != nil {
			s.cfg.Logger.Error("decoding the worker's report failed", "error", err)
			return
		}
		w.report, w.text = r, text
		w.watchdog.timeouts.disconnect = 0
		if r.Timeout > 0 && !s.stopping {
			w.watchdog.timeouts.disconnect = r.Timeout + slack
		}
	}
	if w.watchdog.disconnected {
		s.stalls.over(s.cfg.Logger, w)
	}
	s.timeout.Reset(w.watchdog.heartbeat())
}

// checkWorker acts on a missing heartbeat.
func (s *supervisor) checkWorker() {
	w := s.worker
	if w == nil || w.reaped {
		return
	}
	if w.watchdog.elapsed == 0 {
		w.starvation.begin(w.pid, time.Now())
	}
	action, next := w.watchdog.expired()
	switch action {
	case disconnect:
		if time.Since(s.disconnectedAt) < disconnectInterval {
			w.watchdog.postpone()
			break
		}
		s.disconnectedAt = time.Now()
		s.stalls.begin(s.cfg.Logger, w, s.disconnectedAt)
		s.disconnect(w.report)
	case kill:
		if s.stopping || w.watchdog.extensions >= maxExtensions || !w.starvation.starved(w.pid, time.Now()) {
			s.kill(w)
			return // the worker's end is the next event
		}
		if next = w.watchdog.extend(); w.watchdog.extensions == 1 {
			s.cfg.Logger.Warn("the worker waits for a CPU: not killing it yet", "pid", w.pid, "elapsed", w.watchdog.elapsed)
		}
	}
	s.timeout.Reset(next)
}

func (s *supervisor) kill(w *worker) {
	s.cfg.Logger.Error("the worker hangs: killing it", "pid", w.pid, "elapsed", w.watchdog.elapsed)
	if err := w.signal(unix.SIGKILL); err != nil {
		s.cfg.Logger.Error("killing the worker failed", "error", err)
	}
}

// died decides what follows the end of a worker.
func (s *supervisor) died(w *worker) (done bool) {
	s.worker = nil
	s.timeout.Halt()
	_ = w.sock.Close()
	s.last = exitStatus(w.status)
	if w.status.Exited() && s.last == 0 {
		return true // a regular stop, whoever requested it
	}
	s.disconnect(w.report)
	if s.stopping || !w.watchdog.alive {
		return true
	}
	delay := s.backoff.after(time.Since(w.started))
	s.cfg.Logger.Error("the worker died", "pid", w.pid, "status", describe(w.status), "delay", delay)
	s.restart.Reset(delay)
	return false
}

// disconnect calls Config.Disconnect if there are clients.
func (s *supervisor) disconnect(r Report) {
	if r.Cgroup == "" || len(r.Targets) == 0 {
		return
	}
	s.disconnects.Go(func() {
		s.disconnecting.Lock()
		defer s.disconnecting.Unlock()
		s.cfg.Disconnect(r)
	})
}

// exitStatus is the exit status as a shell reports it.
func exitStatus(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}
