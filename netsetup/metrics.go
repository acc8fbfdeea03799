package netsetup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Objects that Watch repairs, as label values.
const (
	objectAddresses = "addresses"
	objectRules     = "rules"
	objectAccepts   = "accepts"
)

type metrics struct {
	fallbackLo   prometheus.Gauge
	foreignDrops prometheus.Gauge
	repairs      *prometheus.CounterVec
	errors       *prometheus.CounterVec
}

// newMetrics registers with reg unless it is nil.
func newMetrics(reg prometheus.Registerer) (metrics, error) {
	m := metrics{
		fallbackLo: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_netsetup_fallback_lo",
			Help: "1 while the local IPs are on lo because the kernel has no dummy driver.",
		}),
		foreignDrops: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_netsetup_foreign_drops",
			Help: "Chains of others that drop the local IPs' traffic and cannot be given accept rules.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodens_netsetup_repairs_total",
			Help: "Times that the watch found drift and repaired it.",
		}, []string{"object"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodens_netsetup_errors_total",
			Help: "Checks and repairs by the watch that failed.",
		}, []string{"object"}),
	}
	for _, object := range []string{objectAddresses, objectRules, objectAccepts} {
		m.repairs.WithLabelValues(object)
		m.errors.WithLabelValues(object)
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.fallbackLo), reg.Register(m.foreignDrops), reg.Register(m.repairs), reg.Register(m.errors))
}
