package netsetup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

type metrics struct {
	fallbackLo prometheus.Gauge
	repairs    *prometheus.CounterVec
	errors     *prometheus.CounterVec
}

// newMetrics registers with reg unless it is nil.
func newMetrics(reg prometheus.Registerer) (metrics, error) {
	m := metrics{
		fallbackLo: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodens_netsetup_fallback_lo",
			Help: "1 while the local IPs are on lo because the kernel has no dummy driver.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodens_netsetup_repairs_total",
			Help: "Times that nodens found drift of the network setup and repaired it.",
		}, []string{"object"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodens_netsetup_errors_total",
			Help: "Checks and repairs of the network setup that failed.",
		}, []string{"object"}),
	}
	for _, object := range []string{owner.Addresses, owner.Rules, owner.Accepts} {
		m.repairs.WithLabelValues(object)
		m.errors.WithLabelValues(object)
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.fallbackLo), reg.Register(m.repairs), reg.Register(m.errors))
}
