package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/server"
)

// loopProber looks for zones whose upstreams forward back to this cache.
type loopProber struct {
	log      *slog.Logger
	detected *prometheus.GaugeVec // by zone
	requests chan struct{}
}

func newLoopProber(reg prometheus.Registerer, log *slog.Logger) *loopProber {
	p := &loopProber{
		log: log, requests: make(chan struct{}, 1),
		detected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodens_loop_detected", Help: "1 while queries that the zone forwards come back to this cache.",
		}, []string{"zone"}),
	}
	reg.MustRegister(p.detected)
	return p
}

// request requests new probes, because upstreams have changed. It does not block.
func (p *loopProber) request() {
	select {
	case p.requests <- struct{}{}:
	default:
	}
}

// run probes zones at first, on request, and as long as there is a loop, until ctx
// is done.
func (p *loopProber) run(ctx context.Context, zones []*server.Zone) {
	const retryInterval = 30 * time.Second
	p.detected.Reset()
	for {
		var retry <-chan time.Time
		if p.probe(ctx, zones) {
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.requests:
		case <-retry:
		}
	}
}

// probe reports whether any of the zones forwards to itself.
func (p *loopProber) probe(ctx context.Context, zones []*server.Zone) (anyLoop bool) {
	found := make(map[string]bool)
	for _, z := range zones {
		if z.Loop == nil {
			continue
		}
		probe, cancel := context.WithTimeout(ctx, 5*time.Second)
		loop := z.Loop.Run(probe, z)
		cancel()
		found[z.Name] = found[z.Name] || loop
		if loop {
			p.log.Error("forwarding loop: queries of this zone come back to this cache; check the zone's upstreams and resolv.conf", "zone", z.Name)
		}
	}
	for zone, loop := range found {
		p.detected.WithLabelValues(zone).Set(boolGauge(loop))
		anyLoop = anyLoop || loop
	}
	return anyLoop
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
