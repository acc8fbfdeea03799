package supervise

import "time"

const (
	// slack is added to Report.Timeout: the kernel's clock of the heartbeats is
	// up to one tick of 10 ms late.
	slack = 20 * time.Millisecond
	// disconnectInterval is the least time between two disconnects. Clients may
	// have retried with a worker that hangs again; resolvers usually try twice.
	disconnectInterval = 2 * time.Second
	// checkInterval is the resolution of the later timeouts.
	checkInterval = 100 * time.Millisecond
)

// action is what a missing heartbeat leads to.
type action int

const (
	wait       action = iota
	disconnect        // clients that wait for an answer: the first stage
	kill              // the worker: the second stage
)

// watchdog measures the time since a worker's last heartbeat. Each wait counts
// with its planned duration, however long it took: see the package comment.
type watchdog struct {
	timeouts timeouts

	alive        bool          // there was a heartbeat
	elapsed      time.Duration // since the last heartbeat
	waiting      time.Duration // duration of the current wait
	disconnected bool          // since the last heartbeat
	extensions   int           // of the time until kill, since the last heartbeat
}

// timeouts are the times without a heartbeat before an action.
type timeouts struct {
	start      time.Duration // kill, before the first heartbeat
	disconnect time.Duration // 0: never
	kill       time.Duration
}

// heartbeat returns how long to wait for the next one.
func (w *watchdog) heartbeat() time.Duration {
	w.alive, w.disconnected, w.elapsed, w.extensions = true, false, 0, 0
	return w.wait()
}

// expired is called when a wait ended without a heartbeat. It returns the next
// wait.
func (w *watchdog) expired() (action, time.Duration) {
	w.elapsed += w.waiting
	switch {
	case w.elapsed >= w.killTimeout():
		return kill, 0
	case w.alive && !w.disconnected && w.timeouts.disconnect > 0 && w.elapsed >= w.timeouts.disconnect:
		w.disconnected = true
		return disconnect, w.wait()
	}
	return wait, w.wait()
}

// postpone repeats disconnect after the next wait.
func (w *watchdog) postpone() { w.disconnected = false }

// extend adds one timeout to the time until kill. It returns the next wait.
func (w *watchdog) extend() time.Duration {
	w.extensions++
	return w.wait()
}

func (w *watchdog) killTimeout() time.Duration {
	timeout := w.timeouts.kill
	if !w.alive {
		timeout = w.timeouts.start
	}
	return timeout * time.Duration(1+w.extensions)
}

func (w *watchdog) wait() time.Duration {
	w.waiting = min(checkInterval, w.killTimeout()-w.elapsed)
	if w.alive && w.elapsed == 0 {
		w.waiting = w.timeouts.kill / 2 // rarely expires: an idle node is not woken
	}
	if w.alive && !w.disconnected && w.timeouts.disconnect > w.elapsed {
		w.waiting = min(w.timeouts.disconnect, w.killTimeout()) - w.elapsed
	}
	return w.waiting
}
