package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// Bounds and default of the time without a heartbeat after which a daemon counts as
// hung.
const (
	MinHeartbeatTimeout     = 300 * time.Millisecond
	MaxHeartbeatTimeout     = 500 * time.Millisecond
	DefaultHeartbeatTimeout = 400 * time.Millisecond
)

// DefaultPinDir is where a BPF file system is usually mounted.
const DefaultPinDir = "/sys/fs/bpf/nodens"

// MaxFallbacks is the number of fallbacks that a service uses, at most.
const MaxFallbacks = int(redirectLimitsMAX_FALLBACKS)

// LongGone is the time without a heartbeat that Service.Proxied refers to.
const LongGone = time.Duration(redirectLimitsLONG_GONE_SECONDS) * time.Second

// Lost is the time without a heartbeat that Service.LastResort refers to.
const Lost = time.Duration(redirectLimitsLOST_SECONDS) * time.Second

// RedirectConfig is the configuration of a Redirect.
type RedirectConfig struct {
	// Cgroup is the cgroup v2 directory of all pods, see FindKubepods. It must not be
	// the root.
	Cgroup string
	// PinDir is a directory in a BPF file system. OpenRedirect creates it if it is
	// missing. Default DefaultPinDir.
	PinDir   string
	Services []Service
	// HeartbeatTimeout is between MinHeartbeatTimeout and MaxHeartbeatTimeout.
	// Default DefaultHeartbeatTimeout.
	HeartbeatTimeout time.Duration
	// Logger reports what is adopted, replaced and removed. Default: none.
	Logger *slog.Logger
}

// Service is one redirected destination, for UDP and TCP. All its addresses are of
// one family.
type Service struct {
	// VIP is the address that applications query.
	VIP netip.AddrPort
	// Target is the address on which the daemon listens. The CNI must deliver
	// packets to it. An application that queries the target itself from a redirected
	// socket sees replies from the VIP.
	Target netip.AddrPort
	// Fallbacks are used while the daemon is not alive. A socket uses one of them,
	// and another one after about two seconds. Only the first MaxFallbacks are used.
	// If there are none, the service keeps those that a predecessor left in the
	// pinned map.
	Fallbacks []netip.AddrPort
	// PassThrough: the kernel does not redirect while the daemon is not alive.
	PassThrough bool
	// Proxied: the VIP also works without redirection, for instance because it is a
	// cluster IP of the service proxy. If the daemon has ended and sent no heartbeat
	// for LongGone, the kernel stops redirecting, because nothing updates the
	// fallbacks.
	Proxied bool
	// LastResort replaces the fallbacks if the daemon has ended and sent no heartbeat
	// for Lost, because they may be gone then. It must not be behind a socket load
	// balancer, see HasSocketLB. Invalid: there is none.
	LastResort netip.AddrPort
}

// Equal reports whether s and o have the same values.
func (s Service) Equal(o Service) bool {
	return s.VIP == o.VIP && s.Target == o.Target && s.PassThrough == o.PassThrough && s.Proxied == o.Proxied && s.LastResort == o.LastResort &&
		slices.Equal(s.Fallbacks, o.Fallbacks)
}

// withDefaults checks c and returns a copy with defaults and unmapped addresses.
func (c RedirectConfig) withDefaults() (RedirectConfig, error) {
	if c.PinDir == "" {
		c.PinDir = DefaultPinDir
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Cgroup == "" {
		return c, errors.New("no cgroup given")
	}
	if c.HeartbeatTimeout < MinHeartbeatTimeout || c.HeartbeatTimeout > MaxHeartbeatTimeout {
		return c, fmt.Errorf("heartbeat timeout %v: not between %v and %v", c.HeartbeatTimeout, MinHeartbeatTimeout, MaxHeartbeatTimeout)
	}
	c.Services = slices.Clone(c.Services)
	if err := checkServices(c.Services); err != nil {
		return c, err
	}
	return c, nil
}

// checkServices checks services and unmaps their addresses in place.
func checkServices(services []Service) error {
	if limit := int(redirectLimitsMAX_SERVICES); len(services) == 0 || len(services) > limit {
		return fmt.Errorf("%d services: not between 1 and %d", len(services), limit)
	}
	vips := map[netip.AddrPort]bool{}
	ports := map[uint16]bool{}
	for i := range services {
		s := &services[i]
		s.VIP, s.Target = unmap(s.VIP), unmap(s.Target)
		if err := s.check(); err != nil {
			return fmt.Errorf("service %s: %w", s.VIP, err)
		}
		if vips[s.VIP] {
			return fmt.Errorf("service %s: given twice", s.VIP)
		}
		vips[s.VIP] = true
		ports[s.VIP.Port()] = true
	}
	if limit := int(redirectLimitsMAX_PORTS); len(ports) > limit {
		return fmt.Errorf("services have %d different ports: at most %d", len(ports), limit)
	}
	for _, s := range services {
		for _, to := range append([]netip.AddrPort{s.Target, s.LastResort}, s.Fallbacks...) {
			if vips[unmap(to)] {
				return fmt.Errorf("service %s: goes to %s, which is redirected itself", s.VIP, to)
			}
		}
	}
	return nil
}

func (s *Service) check() error {
	for _, ap := range []netip.AddrPort{s.VIP, s.Target} {
		if err := checkUnicast(ap); err != nil {
			return err
		}
	}
	if s.Target.Addr().Is4() != s.VIP.Addr().Is4() {
		return fmt.Errorf("target %s is of the other address family", s.Target)
	}
	if s.LastResort.IsValid() {
		if _, err := checkFallbacks(s.VIP, []netip.AddrPort{s.LastResort}); err != nil {
			return fmt.Errorf("last resort: %w", err)
		}
	}
	if s.PassThrough && len(s.Fallbacks) > 0 {
		return errors.New("has fallbacks and is passed through: choose one")
	}
	fallbacks, err := checkFallbacks(s.VIP, s.Fallbacks)
	s.Fallbacks = fallbacks
	return err
}

// checkFallbacks returns the endpoints that are used, unmapped.
func checkFallbacks(vip netip.AddrPort, endpoints []netip.AddrPort) ([]netip.AddrPort, error) {
	var used []netip.AddrPort
	for _, ap := range endpoints {
		ap = unmap(ap)
		if err := checkUnicast(ap); err != nil {
			return nil, fmt.Errorf("fallback: %w", err)
		}
		if ap.Addr().Is4() != vip.Addr().Is4() {
			return nil, fmt.Errorf("fallback %s is of the other address family", ap)
		}
		if ap == vip {
			return nil, errors.New("is its own fallback")
		}
		if !slices.Contains(used, ap) && len(used) < MaxFallbacks {
			used = append(used, ap)
		}
	}
	return used, nil
}

func checkUnicast(ap netip.AddrPort) error {
	switch {
	case !ap.IsValid() || ap.Port() == 0:
		return fmt.Errorf("%s: not an address and a port", ap)
	case ap.Addr().IsUnspecified() || ap.Addr().IsMulticast():
		return fmt.Errorf("%s: not a unicast address", ap)
	case ap.Addr().Zone() != "":
		return fmt.Errorf("%s: has a zone", ap)
	}
	return nil
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
