package redirect

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// Input is what a plan is made from.
type Input struct {
	Config   *config.Config
	LocalIPs []netip.Addr
	NodeIPs  []netip.Addr // may be empty
	DNSPort  uint16       // of services without a port
	Kubepods string       // directory; empty: find it
	PinDir   string

	ClusterDomain string
	// UpstreamIP is the cluster IP of the Service that answers for ClusterDomain,
	// ClusterIP the one of the Service whose endpoints are learned. Either is
	// invalid if the environment lacks it.
	UpstreamIP, ClusterIP netip.Addr
	LearnsEndpoints       bool // there is an API server to learn endpoints from
	Sample                bool // nodens serves the embedded sample
	Getenv                func(string) string
}

// Plan is the redirection that one configuration wants. If Err is set, nodens
// does not redirect and serves by address only.
type Plan struct {
	Mode      config.RedirectMode
	Heartbeat time.Duration // 0: the default
	OptOut    []config.PodName
	Uplinks   []string // empty: find them
	Kubepods  string   // directory; empty: find it
	PinDir    string
	Services  []bpf.Service
	// Skipped has one reason for each service that is left out.
	Skipped []string
	// FixedFallbacks: the user set the fallbacks, so nodens uses no learned ones.
	FixedFallbacks bool
	// LearnsEndpoints: there is an API server. Until it answers, the fallbacks that
	// a predecessor pinned are better than those in Services.
	LearnsEndpoints bool
	// ClusterIP is the cluster IP of the cluster's DNS, if it is known. The service
	// proxy delivers it even when no daemon runs.
	ClusterIP     netip.Addr
	ClusterDomain string // nodens asks fallbacks for its SOA record
	// Clears: redirection is off, and nodens removes a predecessor's pins.
	Clears bool
	Err    error
}

// NewPlan returns the plan for in.
func NewPlan(in Input) Plan {
	s := in.Config.Redirect()
	p := Plan{
		Mode: s.Mode, Heartbeat: s.Heartbeat, OptOut: s.OptOut, Uplinks: s.Uplinks,
		Kubepods: in.Kubepods, PinDir: in.PinDir,
	}
	if !p.Wanted() {
		p.Clears = !in.Sample && len(in.LocalIPs) > 0 // else a user only tries nodens
		return p
	}
	p.FixedFallbacks = len(s.Fallbacks) > 0
	fallbacks := s.Fallbacks
	if !p.FixedFallbacks {
		fallbacks = in.clusterUpstreams()
		p.LearnsEndpoints = in.LearnsEndpoints
	}
	p.ClusterIP, p.ClusterDomain = in.ClusterIP, in.ClusterDomain
	vips := in.vips()
	if len(vips) == 0 {
		p.Err = errors.New("nothing to redirect: set -localip or the option service")
		return p
	}
	p.Err = p.addServices(vips, fallbacks, &targets{node: in.nodeAddress, given: s.Targets, used: make(map[bool]int)})
	return p
}

// Wanted reports whether p redirects sockets, or may do so later.
func (p Plan) Wanted() bool { return p.Mode == config.RedirectAuto || p.Mode == config.RedirectOn }

// addServices skips a service if the node has no address of its family. It fails
// if it would have to skip all of them.
func (p *Plan) addServices(vips, fallbacks []netip.AddrPort, t *targets) error {
	var skipped error
	for _, vip := range vips {
		target, err := t.next(vip)
		if err != nil {
			err = fmt.Errorf("target of service %v: %w", vip, err)
		}
		switch {
		case errors.Is(err, errNodeAddress):
			skipped = errors.Join(skipped, err)
			p.Skipped = append(p.Skipped, err.Error())
			continue
		case err != nil:
			return err
		}
		p.Services = append(p.Services, bpf.Service{
			VIP: vip, Target: target, Fallbacks: fallbacksFor(vip, vips, fallbacks),
			Proxied: vip.Addr() == p.ClusterIP && !p.FixedFallbacks, LastResort: p.lastResort(vip, vips),
		})
	}
	if len(p.Services) == 0 {
		return skipped
	}
	return nil
}

// lastResort is the cluster IP of the cluster's DNS, unless the user set fallbacks.
func (p *Plan) lastResort(vip netip.AddrPort, vips []netip.AddrPort) (to netip.AddrPort) {
	const port = 53
	if some := fallbacksFor(vip, vips, []netip.AddrPort{netip.AddrPortFrom(p.ClusterIP, port)}); p.ClusterIP.IsValid() && !p.FixedFallbacks && len(some) > 0 {
		to = some[0]
	}
	return to
}

// vips returns the given services, or the local addresses if none are given.
func (in Input) vips() []netip.AddrPort {
	var vips []netip.AddrPort
	for _, ap := range in.Config.Redirect().Services {
		if ap.Port() == 0 {
			ap = netip.AddrPortFrom(ap.Addr(), in.DNSPort)
		}
		if !slices.Contains(vips, ap) {
			vips = append(vips, ap)
		}
	}
	if len(vips) > 0 {
		return vips
	}
	for _, a := range in.LocalIPs {
		if !a.IsLoopback() {
			vips = append(vips, netip.AddrPortFrom(a, in.DNSPort))
		}
	}
	return vips
}

// clusterUpstreams returns the plain DNS servers that the cluster domain is
// forwarded to, and the cluster IP from the environment. They are the fallbacks
// until others are given or learned. The local addresses are not among them.
func (in Input) clusterUpstreams() []netip.AddrPort {
	var addrs []netip.AddrPort
	add := func(ap netip.AddrPort) {
		a := ap.Addr()
		if a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !slices.Contains(in.LocalIPs, a) && !slices.Contains(addrs, ap) {
			addrs = append(addrs, ap)
		}
	}
	domain := strings.ToLower(in.ClusterDomain) + "."
	for _, b := range in.Config.Blocks {
		if !slices.ContainsFunc(b.Zones, func(z config.Zone) bool { return z.Name == domain }) {
			continue
		}
		for _, f := range b.Forwards {
			for _, u := range f.To {
				if !u.TLS && u.ResolvConf == "" {
					add(u.Addr)
				}
			}
		}
	}
	add(netip.AddrPortFrom(in.UpstreamIP, 53))
	return addrs
}

// fallbacksFor returns the addresses of all that have the family of vip and are
// not redirected themselves.
func fallbacksFor(vip netip.AddrPort, vips, all []netip.AddrPort) []netip.AddrPort {
	var some []netip.AddrPort
	for _, ap := range all {
		if ap.Addr().Is4() == vip.Addr().Is4() && !slices.Contains(vips, ap) {
			some = append(some, ap)
		}
	}
	return some
}

// withPinned returns the services of p. Fallbacks that a predecessor pinned
// replace those of the plan.
func (p Plan) withPinned(pinned []bpf.Pinned) []bpf.Service {
	services := slices.Clone(p.Services)
	for i := range services {
		s := &services[i]
		for _, dir := range pinned {
			for _, old := range dir.Services {
				if some := fallbacksFor(s.VIP, p.vips(), old.Fallbacks); old.VIP == s.VIP && len(some) > 0 {
					s.Fallbacks = some
				}
			}
		}
	}
	return services
}

// IsTarget reports whether a service is redirected to a.
func (p Plan) IsTarget(a netip.AddrPort) bool {
	return slices.ContainsFunc(p.Services, func(s bpf.Service) bool { return s.Target == a })
}

// vips returns the redirected addresses.
func (p Plan) vips() []netip.AddrPort {
	var vips []netip.AddrPort
	for _, s := range p.Services {
		vips = append(vips, s.VIP)
	}
	return vips
}

// Equal reports whether p and q mean the same to the kernel and to listeners.
func (p Plan) Equal(q Plan) bool {
	return p.Mode == q.Mode && p.Heartbeat == q.Heartbeat && p.Kubepods == q.Kubepods && p.PinDir == q.PinDir &&
		p.FixedFallbacks == q.FixedFallbacks && p.LearnsEndpoints == q.LearnsEndpoints &&
		p.ClusterIP == q.ClusterIP && p.Clears == q.Clears && errorText(p.Err) == errorText(q.Err) &&
		slices.Equal(p.OptOut, q.OptOut) && slices.Equal(p.Uplinks, q.Uplinks) && slices.Equal(p.Skipped, q.Skipped) &&
		slices.EqualFunc(p.Services, q.Services, bpf.Service.Equal)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Bindings returns one binding for each target. It serves the zones that are
// bound to the service's VIP, or, if there are none, all zones on its port. gate
// keeps queries from outside the node away.
func (p Plan) Bindings(byAddr map[netip.AddrPort][]*server.Zone, gate *server.Gate) ([]server.Binding, error) {
	if !p.Wanted() || p.Err != nil {
		return nil, nil
	}
	var bindings []server.Binding
	for _, s := range p.Services {
		if len(byAddr[s.Target]) > 0 {
			return nil, fmt.Errorf("target %v: a server block is bound to it, choose another port", s.Target)
		}
		zones := zonesAt(s.VIP, byAddr)
		if len(zones) == 0 {
			return nil, fmt.Errorf("service %v: no server block is served on port %d", s.VIP, s.VIP.Port())
		}
		zones = append(slices.Clone(zones), server.HeartbeatZone())
		bindings = append(bindings, server.Binding{Addr: s.Target, Zones: zones, Gate: gate})
	}
	return bindings, nil
}

func zonesAt(vip netip.AddrPort, byAddr map[netip.AddrPort][]*server.Zone) []*server.Zone {
	if zones := byAddr[vip]; len(zones) > 0 {
		return zones
	}
	var zones []*server.Zone
	seen := make(map[string]bool)
	for _, addr := range slices.SortedFunc(maps.Keys(byAddr), netip.AddrPort.Compare) {
		if addr.Port() != vip.Port() {
			continue
		}
		for _, z := range byAddr[addr] {
			if !seen[z.Name] {
				seen[z.Name] = true
				zones = append(zones, z)
			}
		}
	}
	return zones
}
