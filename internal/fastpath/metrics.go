package fastpath

import (
	"net"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
)

// Counts implements server.Fastpath.
func (c *Controller) Counts(zone int) server.KernelCounts {
	if c.kernel == nil {
		return server.KernelCounts{}
	}
	n, _ := c.kernel.Counts(zone)
	return server.KernelCounts(n)
}

type collector struct {
	*Controller
	answers, passed, leases, entries, interfaces *prometheus.Desc
}

func newCollector(c *Controller) *collector {
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		Controller: c,
		answers: prometheus.NewDesc("nodens_kernel_answers_total",
			"Queries that the kernel answered on pods' interfaces. They are part of coredns_dns_requests_total.", nil, nil),
		passed: prometheus.NewDesc("nodens_kernel_passed_total",
			"DNS queries on pods' interfaces that the kernel passed, or dropped as lost, by reason. Some are for other servers.", []string{"reason"}, nil),
		leases:     gauge("nodens_kernel_leases", "Clients that the kernel may answer now, by the host's end of the pod's veth.", "interface"),
		entries:    gauge("nodens_kernel_entries", "Answers in the kernel's table."),
		interfaces: gauge("nodens_kernel_interfaces", "Interfaces of pods on which the kernel answers."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.answers, c.passed, c.leases, c.entries, c.interfaces} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It exports nothing if the program is not
// loaded.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	if c.kernel == nil {
		return
	}
	leases := c.leasesByName()
	ch <- prometheus.MustNewConstMetric(c.answers, prometheus.CounterValue, float64(c.answered()))
	for name, n := range leases {
		ch <- prometheus.MustNewConstMetric(c.leases, prometheus.GaugeValue, float64(n), name)
	}
	ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(c.kernel.Entries()))
	ch <- prometheus.MustNewConstMetric(c.interfaces, prometheus.GaugeValue, float64(len(leases)))
	passed, err := c.kernel.Passed()
	if err != nil {
		return
	}
	for i, reason := range bpf.PassReasons() {
		ch <- prometheus.MustNewConstMetric(c.passed, prometheus.CounterValue, float64(passed[i]), reason)
	}
}

// leasesByName returns the number of leases on each interface that has the program.
func (c *collector) leasesByName() map[string]int {
	byIndex, byName := c.kernel.Leases(), make(map[string]int)
	attached := c.kernel.Attached()
	links, _ := net.Interfaces() // all at once: each call lists all. After an error there are none
	for _, l := range links {
		if slices.Contains(attached, l.Index) {
			byName[l.Name] = byIndex[l.Index]
		}
	}
	return byName
}

// answered returns how many queries the kernel has answered.
func (c *collector) answered() (n uint64) {
	for zone := range server.KernelZones {
		lookups := c.Counts(zone).Lookups
		n += lookups[0] + lookups[1]
	}
	return n
}
