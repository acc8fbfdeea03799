package upstream

import (
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// noEDNSFor is how long a server that choked on our OPT record is asked
// without one.
const noEDNSFor = 15 * time.Minute

// server is an Endpoint and what we know of it.
type server struct {
	Endpoint
	to      string // host:port, as dialled and as a metric label
	tls     *tls.Config
	idle    connStack
	ports   portStock
	rtt     rtt
	metrics *endpointMetrics
	noEDNS  atomic.Int64  // Unix nanoseconds until which it gets no OPT record
	sentOPT atomic.Int64  // Unix nanoseconds of the last OPT record from it
	gone    chan struct{} // closed when retired

	mu      sync.Mutex
	fails   int  // in a row
	dead    bool // MaxFails were reached
	probing bool
	retired bool
}

// newServer needs p.mu held.
func (p *Pool) newServer(e Endpoint) *server {
	s := &server{Endpoint: e, to: e.Addr.String(), gone: make(chan struct{})}
	s.metrics = p.cfg.Metrics.acquire(s.to)
	if e.TLS {
		s.tls = endpointTLS(p.tls, e)
	}
	if p.stopped {
		s.retire()
	}
	return s
}

// retire closes the idle connections and ends the keeping of new ones, the
// probes and the metrics. Exchanges under way are not disturbed.
func (s *server) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return
	}
	s.retired = true
	close(s.gone)
	s.idle.close()
	s.ports.close()
	s.setDead(false)
	s.metrics.release()
}

// name is how errors and logs call the server.
func (s *server) name() string {
	if s.ServerName != "" {
		return s.to + " (" + s.ServerName + ")"
	}
	return s.to
}

func (s *server) takesEDNS(now time.Time) bool { return now.UnixNano() >= s.noEDNS.Load() }

// refusesEDNS notes that s has answered a question without an OPT record and not
// with one. Where s has shown lately that it knows them, that was the fault of
// the question: a forwarder hands on what some server behind it cannot read,
// and one name must not turn EDNS off for all.
func (s *server) refusesEDNS(now time.Time) {
	if now.Add(-noEDNSFor).UnixNano() >= s.sentOPT.Load() {
		s.noEDNS.Store(now.Add(noEDNSFor).UnixNano())
	}
}

// heard looks for what a reply of s tells of s. That its version is not ours
// (BADVERS) is no OPT record to speak of.
func (s *server) heard(m *dns.Msg, now time.Time) {
	if m.Rcode != dns.RcodeBadVers && m.IsEdns0() != nil {
		s.sentOPT.Store(now.UnixNano())
	}
}

// failures is how many queries failed in a row.
func (s *server) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fails
}

// setDead changes dead and reports whether that was a change; s.mu is held.
func (s *server) setDead(dead bool) (changed bool) {
	if s.dead == dead {
		return false
	}
	s.dead = dead
	if dead {
		s.metrics.addDown(1)
	} else {
		s.metrics.addDown(-1)
	}
	return true
}
