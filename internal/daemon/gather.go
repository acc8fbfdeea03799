package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// metrics has the values of counters and gauges, by the name of the metric.
type metrics struct {
	families     map[string][]*dto.Metric
	label, value string // those without it are left out, unless label is empty
}

// gather reads all metrics. It leaves out metrics that cannot be read.
func gather(from prometheus.Gatherer) metrics {
	m := metrics{families: make(map[string][]*dto.Metric)}
	all, _ := from.Gather()
	for _, f := range all {
		m.families[f.GetName()] = f.GetMetric()
	}
	return m
}

// where returns the metrics with this value of a label.
func (m metrics) where(label, value string) metrics {
	m.label, m.value = label, value
	return m
}

func (m metrics) has(name string) bool { return len(m.families[name]) > 0 }

// sums returns the sums of a metric by the values of a label.
func (m metrics) sums(name, by string) map[string]uint64 {
	all := make(map[string]uint64)
	for _, s := range m.families[name] {
		if m.label == "" || labelOf(s, m.label) == m.value {
			all[labelOf(s, by)] += uint64(s.GetCounter().GetValue() + s.GetGauge().GetValue())
		}
	}
	return all
}

// sum returns the sum of a metric over all labels.
func (m metrics) sum(name string) (n uint64) {
	for _, v := range m.sums(name, "") {
		n += v
	}
	return n
}

// labelOf returns the value of a label, or "".
func labelOf(s *dto.Metric, name string) string {
	for _, l := range s.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
