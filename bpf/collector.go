package bpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a collector that reads the kernel's state at each scrape. The
// caller registers it.
func (r *Redirect) Collector() prometheus.Collector {
	return &collector{
		r: r,
		exits: prometheus.NewDesc("nodens_redirect_total",
			"Runs of the socket redirection programs, by exit reason.", []string{"hook", "reason"}, nil),
		alive: prometheus.NewDesc("nodens_redirect_alive",
			"1 while the kernel sends lookups to the daemon: the process exists and its heartbeat is recent.", nil, nil),
		age: prometheus.NewDesc("nodens_redirect_heartbeat_age_seconds",
			"Time since the last heartbeat.", nil, nil),
		fallbacks: prometheus.NewDesc("nodens_redirect_fallback_endpoints",
			"Addresses to which the kernel sends lookups of a service while the daemon is not alive.", []string{"vip"}, nil),
	}
}

type collector struct {
	r                            *Redirect
	exits, alive, age, fallbacks *prometheus.Desc
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.exits, c.alive, c.age, c.fallbacks} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.r.closed {
		return
	}
	c.collectExits(out)
	c.collectAlive(out)
	for vip, s := range c.r.table.services {
		if !s.PassThrough {
			out <- prometheus.MustNewConstMetric(c.fallbacks, prometheus.GaugeValue, float64(len(s.Fallbacks)), vip.String())
		}
	}
}

func (c *collector) collectExits(out chan<- prometheus.Metric) {
	for _, h := range hooks() {
		for reason := range redirectExitReasonEXIT_COUNT {
			label, ok := reason.label(h.forward)
			if !ok {
				continue
			}
			n, err := readExits(c.r.objs.Exits, h.index, reason)
			if err != nil {
				out <- prometheus.NewInvalidMetric(c.exits, err)
				return
			}
			out <- prometheus.MustNewConstMetric(c.exits, prometheus.CounterValue, float64(n), h.name, label)
		}
	}
}

func (c *collector) collectAlive(out chan<- prometheus.Metric) {
	age, alive, err := c.r.state()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.alive, err)
		return
	}
	value := 0.0
	if alive {
		value = 1
	}
	out <- prometheus.MustNewConstMetric(c.alive, prometheus.GaugeValue, value)
	out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, age.Seconds())
}

// readExits returns a counter, summed over the CPUs.
func readExits(exits *ebpf.Map, h redirectHook, reason redirectExitReason) (uint64, error) {
	var perCPU []uint64
	key := uint32(h)*uint32(redirectExitReasonEXIT_COUNT) + uint32(reason)
	if err := exits.Lookup(key, &perCPU); err != nil {
		return 0, fmt.Errorf("redirect: read counter: %w", err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// state returns the daemon's state as the programs see it. The caller holds mu.
func (r *Redirect) state() (age time.Duration, alive bool, err error) {
	age, err = r.beat.age()
	if err != nil {
		return 0, false, err
	}
	holder, err := canaryCookie(r.objs.Canary)
	if err != nil {
		return 0, false, err
	}
	return age, holder != 0 && age <= r.table.timeout, nil
}
