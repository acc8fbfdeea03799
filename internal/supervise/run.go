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
)

// supervisor is the state of Run, which owns it.
type supervisor struct {
	cfg      Config
	score    oomScore
	messages chan message
	worker   *worker // nil between a death and the next start
	stopping bool
	last     int         // exit status of the worker before
	pauses   pauses      // between workers
	restart  *time.Timer // set while worker is nil
	silent   *time.Timer // the worker's silence.wait
	freedAt  time.Time   // for a silence, last

	freeing sync.Mutex
	freed   sync.WaitGroup
}

// Run keeps a worker running until one ends for good, and returns the status to
// exit with. What comes by signals is handed on; SIGTERM and SIGINT mean the end.
//
// It waits for every child of the process: the caller has no others.
func Run(signals <-chan os.Signal, cfg Config) (status int, err error) {
	s := &supervisor{
		cfg: cfg.withDefaults(), messages: make(chan message),
		restart: time.NewTimer(0), silent: time.NewTimer(0),
	}
	s.restart.Stop()
	s.silent.Stop()
	if s.score, err = shieldFromOOM(); err != nil {
		s.cfg.Logger.Warn("the kernel may choose the supervisor when memory runs out", "error", err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	defer s.freed.Wait()
	if err := s.start(); err != nil {
		return 0, err
	}
	for {
		if done := s.step(signals, children); done {
			return s.last, nil
		}
	}
}

// step handles one event and reports whether it was the last.
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
			s.beat(m.text)
			return false
		}
		s.worker.closed = true
	case <-s.silent.C:
		s.elapsed()
		return false
	case <-s.restart.C:
		return s.again()
	}
	if w := s.worker; w != nil && w.reaped && w.closed {
		return s.died(w)
	}
	return false
}

func (s *supervisor) start() error {
	w, err := startWorker(s.cfg.Program, s.messages)
	if err != nil {
		return err
	}
	s.worker = w
	if err := s.score.apply(w.pid); err != nil {
		s.cfg.Logger.Warn("the kernel may choose the supervisor when memory runs out", "error", err)
	}
	w.silence.limits = s.cfg.limits()
	s.silent.Reset(w.silence.wait())
	return nil
}

// again is start after a death.
func (s *supervisor) again() (done bool) {
	err := s.start()
	if err == nil {
		s.cfg.Logger.Info("worker started again", "pid", s.worker.pid)
		return false
	}
	s.cfg.Logger.Error("worker is not started again", "error", err)
	s.restart.Reset(s.pauses.after(0))
	return false
}

// forward ends Run only where there is nobody to end.
func (s *supervisor) forward(sig os.Signal) (done bool) {
	ends := sig == syscall.SIGTERM || sig == syscall.SIGINT
	if s.worker == nil {
		return ends
	}
	if ends && !s.stopping {
		s.stopping = true
		s.worker.silence.limits = limits{start: s.cfg.Stop, kill: s.cfg.Stop}
	}
	if err := s.worker.signal(sig.(syscall.Signal)); err != nil {
		s.cfg.Logger.Error("signal not handed on", "signal", sig, "error", err)
	}
	return false
}

// reap waits for all children that have ended, whoever's they were.
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
			// Its end of the socket goes with it, unless it gave it away.
			_ = w.sock.SetReadDeadline(time.Now().Add(time.Second))
		}
	}
}

func (s *supervisor) beat(text []byte) {
	w := s.worker
	if !bytes.Equal(text, w.text) {
		r, err := decodeReport(text)
		if err != nil {
			s.cfg.Logger.Error("report of the worker", "error", err)
			return
		}
		w.report, w.text = r, text
		w.silence.limits.free = 0
		if r.Silence > 0 && !s.stopping {
			w.silence.limits.free = r.Silence + slack
		}
	}
	if w.silence.freed {
		s.cfg.Logger.Info("the worker beats again", "pid", w.pid)
	}
	s.silent.Reset(w.silence.beat())
}

// elapsed acts on the worker's silence.
func (s *supervisor) elapsed() {
	w := s.worker
	if w == nil || w.reaped {
		return
	}
	what, next := w.silence.elapsed()
	switch what {
	case free:
		if time.Since(s.freedAt) < between {
			w.silence.postpone()
			break
		}
		s.freedAt = time.Now()
		s.cfg.Logger.Warn("the worker is silent", "pid", w.pid, "for", w.silence.counted)
		s.free(w.report)
	case kill:
		s.cfg.Logger.Error("the worker hangs: killing it", "pid", w.pid, "silent", w.silence.counted)
		if err := w.signal(unix.SIGKILL); err != nil {
			s.cfg.Logger.Error("the worker is not killed", "error", err)
		}
		return // its death is the next event
	}
	s.silent.Reset(next)
}

// died decides what comes after a worker's end.
func (s *supervisor) died(w *worker) (done bool) {
	s.worker = nil
	s.silent.Stop()
	_ = w.sock.Close()
	s.last = exitStatus(w.status)
	if w.status.Exited() && s.last == 0 {
		return true // as it was told, by us or by another
	}
	s.free(w.report)
	if s.stopping || !w.silence.beaten {
		return true
	}
	pause := s.pauses.after(time.Since(w.started))
	s.cfg.Logger.Error("the worker died", "pid", w.pid, "how", how(w.status), "starting again in", pause)
	s.restart.Reset(pause)
	return false
}

// free calls Free unless there is nobody to free.
func (s *supervisor) free(r Report) {
	if r.Cgroup == "" || len(r.Targets) == 0 {
		return
	}
	s.freed.Go(func() {
		s.freeing.Lock()
		defer s.freeing.Unlock()
		s.cfg.Free(r)
	})
}

// exitStatus is what a shell makes of a signal.
func exitStatus(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

func how(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}
