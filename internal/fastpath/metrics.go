package fastpath

import (
	"net"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
)

// totals are the counts of the programs that have been closed.
type totals struct {
	mu     sync.Mutex
	zones  [server.KernelZones]bpf.FastCounts
	passed []uint64
}

// keep adds the counts of kernel, which is about to be closed.
func (t *totals) keep(kernel *bpf.Fastpath) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for zone := range t.zones {
		if n, err := kernel.Counts(zone); err == nil {
			t.zones[zone].Add(&n)
		}
	}
	t.passed = addPassed(kernel, t.passed)
}

// addPassed returns before plus kernel's counts.
func addPassed(kernel *bpf.Fastpath, before []uint64) []uint64 {
	sum := make([]uint64, len(bpf.PassReasons()))
	copy(sum, before)
	if n, err := kernel.Passed(); err == nil {
		for i := range n {
			sum[i] += n[i]
		}
	}
	return sum
}

// Counts implements server.Fastpath.
func (c *Controller) Counts(zone int) server.KernelCounts {
	c.mu.RLock()
	defer c.mu.RUnlock()
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	sum := c.counts.zones[zone]
	if c.kernel != nil {
		if n, err := c.kernel.Counts(zone); err == nil {
			sum.Add(&n)
		}
	}
	return server.KernelCounts(sum)
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
			"DNS queries on pods' interfaces that the kernel passed to nodens, by reason.", []string{"reason"}, nil),
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

// Collect implements prometheus.Collector. It exports nothing before the first plan
// that wants the fast path.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	c.counts.mu.Lock()
	passed := c.counts.passed
	c.counts.mu.Unlock()
	var entries int
	leases := make(map[string]int)
	if c.kernel != nil {
		passed = addPassed(c.kernel, passed)
		leases, entries = c.leasesByName(), c.kernel.Entries()
	}
	if passed == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.answers, prometheus.CounterValue, float64(c.answered()))
	for name, n := range leases {
		ch <- prometheus.MustNewConstMetric(c.leases, prometheus.GaugeValue, float64(n), name)
	}
	ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(entries))
	ch <- prometheus.MustNewConstMetric(c.interfaces, prometheus.GaugeValue, float64(len(leases)))
	for i, reason := range bpf.PassReasons() {
		ch <- prometheus.MustNewConstMetric(c.passed, prometheus.CounterValue, float64(passed[i]), reason)
	}
}

// leasesByName returns the number of leases on each interface that has the program.
// The caller holds mu.
func (c *Controller) leasesByName() map[string]int {
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

// answered returns how many queries the kernel has answered. The caller holds mu.
func (c *Controller) answered() (n uint64) {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	for zone := range c.counts.zones {
		n += c.counts.zones[zone].Lookups[0] + c.counts.zones[zone].Lookups[1]
		if c.kernel != nil {
			if now, err := c.kernel.Counts(zone); err == nil {
				n += now.Lookups[0] + now.Lookups[1]
			}
		}
	}
	return n
}
