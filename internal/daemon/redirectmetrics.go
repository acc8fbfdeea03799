package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/server"
)

// redirectState is how far redirection is.
type redirectState string

const (
	stateOff       redirectState = "off"       // not asked for
	stateWaiting   redirectState = "waiting"   // not started, or auto does not know yet
	stateNeedless  redirectState = "needless"  // auto: pods reach the addresses
	stateOn        redirectState = "on"        // sockets are redirected
	stateFailed    redirectState = "failed"    // asked for, and cannot be had
	stateWithdrawn redirectState = "withdrawn" // at the end: pods ask the fallbacks
)

func redirectStates() []redirectState {
	return []redirectState{stateOff, stateWaiting, stateNeedless, stateOn, stateFailed, stateWithdrawn}
}

// redirectMetrics are about the process's part; the kernel's is the bpf
// package's collector.
type redirectMetrics struct {
	state  *prometheus.GaugeVec
	errors prometheus.Counter
	missed prometheus.Counter
}

func newRedirectMetrics(reg prometheus.Registerer, gate *server.Gate) *redirectMetrics {
	m := &redirectMetrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodens_redirect_state", Help: "1 for the state that redirection is in.",
		}, []string{"state"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_redirect_errors_total", Help: "Failures to redirect, each with a line in the log.",
		}),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodens_redirect_heartbeats_missed_total", Help: "Questions to ourselves that had no answer in time.",
		}),
	}
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "nodens_redirect_refused_total", Help: "Datagrams and connections to a target that came from outside the node and got no answer.",
	}, func() float64 { return float64(gate.Refused()) })
	reg.MustRegister(m.state, m.errors, m.missed, refused)
	m.set(stateOff)
	return m
}

// set says which state it is.
func (m *redirectMetrics) set(now redirectState) {
	for _, s := range redirectStates() {
		m.state.WithLabelValues(string(s)).Set(boolGauge(s == now))
	}
}
