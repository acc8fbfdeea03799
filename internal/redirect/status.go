package redirect

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/server"
)

// state is the state label of nodens_redirect_state.
type state string

const (
	stateOff       state = "off"       // the configuration does not want it
	stateWaiting   state = "waiting"   // not started, or auto has no result yet
	stateNeedless  state = "needless"  // auto: pods reach the local addresses
	stateOn        state = "on"        // sockets are redirected
	stateFailed    state = "failed"    // wanted, but it does not work
	stateReplaced  state = "replaced"  // another process redirects
	stateTornDown  state = "torn_down" // an operator ran teardown
	stateWithdrawn state = "withdrawn" // at the end: pods use the fallbacks
)

func states() []state {
	return []state{stateOff, stateWaiting, stateNeedless, stateOn, stateFailed, stateReplaced, stateTornDown, stateWithdrawn}
}

// status reports the state of redirection in the log and in metrics. Its methods
// are safe for concurrent use.
type status struct {
	log    *slog.Logger
	state  *prometheus.GaugeVec
	errors prometheus.Counter
	missed prometheus.Counter // heartbeats
	// fallback is 1 for each that answers, by address
	fallback *prometheus.GaugeVec

	mu       sync.Mutex // guards the history of failures
	reason   string     // of the last failure; empty after a success
	failures int        // resets since the last success
	lost     bool       // pods do not reach a target
}

func newStatus(log *slog.Logger, reg prometheus.Registerer, gate *server.Gate) *status {
	s := &status{
		log: log,
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodens_redirect_state", Help: "1 for the current state of redirection, 0 for the others.",
		}, []string{"state"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_redirect_errors_total", Help: "Failures of redirection; each has a line in the log.",
		}),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_redirect_heartbeats_missed_total", Help: "Queries of nodens to its own targets that got no answer in time.",
		}),
	}
	s.fallback = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nodens_redirect_fallback_up", Help: "1 if a fallback answers nodens, 0 if it does not and is not used while another one answers.",
	}, []string{"fallback"})
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "nodens_redirect_refused_total", Help: "Datagrams and connections to a target that came from outside the node and got no answer.",
	}, func() float64 { return float64(gate.Refused()) })
	reg.MustRegister(s.state, s.errors, s.missed, s.fallback, refused)
	s.set(stateOff)
	return s
}

// set changes the state metric.
func (s *status) set(now state) {
	for _, other := range states() {
		value := 0.0
		if other == now {
			value = 1
		}
		s.state.WithLabelValues(string(other)).Set(value)
	}
}

// error logs and counts a failure.
func (s *status) error(msg string, args ...any) {
	s.errors.Inc()
	s.log.Error(msg, args...)
}

// errorOnce logs and counts err unless its text equals before. It returns the text
// of err, empty for nil.
func (s *status) errorOnce(before, msg string, err error) string {
	now := errorText(err)
	if err != nil && now != before {
		s.error(msg, "error", err)
	}
	return now
}

// off sets the state and forgets failures.
func (s *status) off() {
	s.succeed()
	s.set(stateOff)
}

// engaged is on for a new session: pods have reached its targets.
func (s *status) engaged() {
	s.mu.Lock()
	s.lost = false
	s.mu.Unlock()
	s.on()
}

// on sets the state and forgets failures. While pods do not reach a target, the state
// is failed.
func (s *status) on() {
	s.succeed()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := stateOn
	if s.lost {
		now = stateFailed
	}
	s.set(now)
}

// unreachable sets the state, until reachable is called, and logs why.
func (s *status) unreachable(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	s.error("lookups go to the fallbacks", "error", err)
	s.set(stateFailed)
}

func (s *status) reachable() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = false
	s.log.Info("pods reach the target again: sockets are redirected")
	s.set(stateOn)
}

// warnOnce logs err unless its text equals before. It returns the text of err.
func (s *status) warnOnce(before, msg string, err error) string {
	now := errorText(err)
	if err != nil && now != before {
		s.log.Warn(msg, "error", err)
	}
	return now
}

func (s *status) succeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason, s.failures = "", 0
}

// fail sets the state, and logs why redirection is off, once per reason.
func (s *status) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = s.errorOnce(s.reason, "sockets are not redirected; nodens serves by address", err)
	s.set(stateFailed)
}

// Delays before a reload is requested.
const firstRetry, longestRetry = 30 * time.Second, 10 * time.Minute

// nextRetry returns how long to wait before the next attempt from scratch. The
// delay doubles until a success.
func (s *status) nextRetry() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := min(firstRetry<<s.failures, longestRetry)
	s.failures = min(s.failures+1, 10)
	return wait
}
