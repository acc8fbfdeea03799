package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/kube"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/netsetup"
)

// defaultTargetPort is outside the range of NodePorts (30000–32767) and of
// ephemeral ports, and below no registered service in common use on nodes.
const defaultTargetPort = 20053

// redirectPlan is a configuration's redirection, worked out: where each service
// goes. err says why it cannot be had; the daemon serves by address then.
type redirectPlan struct {
	settings config.Redirect
	pinDir   string
	services []bpf.Service
	// without says which services are left out, and why.
	without []string
	// given: the fallbacks are the user's, and no others are to be learnt.
	given bool
	// learns: there is an API server to learn fallbacks from. Until it has told,
	// those that a predecessor has pinned are better than services have.
	learns bool
	// cluster is the ClusterIP of the cluster's DNS, as far as the environment
	// tells. A service there has somebody to answer when we are gone for good.
	cluster netip.Addr
	// clears: with redirection off, what a predecessor has pinned is removed.
	clears bool
	err    error
}

// planRedirect never fails: see redirectPlan.err.
func (d *daemon) planRedirect(cfg source) redirectPlan {
	p := redirectPlan{settings: d.redirectSettings(cfg), pinDir: d.opts.Redirect.PinDir}
	if p.settings.Mode == config.RedirectOff {
		p.clears = !d.opts.Sample && len(d.opts.LocalIPs) > 0 // else this is a trial
		return p
	}
	p.given = len(p.settings.Fallbacks) > 0
	fallbacks := p.settings.Fallbacks
	if !p.given {
		fallbacks = d.clusterUpstreams(cfg)
		_, err := kube.InCluster(d.opts.Getenv, d.opts.Cluster.Account)
		p.learns = err == nil
	}
	p.cluster, _ = netip.ParseAddr(d.opts.Getenv(serviceEnv(d.opts.Cluster.Service)))
	vips := d.redirectedVIPs(p.settings.Services)
	if len(vips) == 0 {
		p.err = errors.New("nothing to redirect: give -localip or a service")
		return p
	}
	p.err = p.addServices(vips, fallbacks, targets{nodes: d.nodeAddresses, given: p.settings.Targets, next: make(map[bool]int)})
	return p
}

// addServices leaves out those of an address family that the node has no address of,
// unless there are no others.
func (p *redirectPlan) addServices(vips, fallbacks []netip.AddrPort, t targets) error {
	var without error
	for _, vip := range vips {
		target, err := t.forService(vip)
		if err != nil {
			err = fmt.Errorf("target of service %v: %w", vip, err)
		}
		switch {
		case errors.Is(err, errNodeAddress):
			without = errors.Join(without, err)
			p.without = append(p.without, err.Error())
			continue
		case err != nil:
			return err
		}
		p.services = append(p.services, bpf.Service{
			VIP: vip, Target: target, Fallbacks: fallbacksFor(vip, vips, fallbacks),
			Proxied: vip.Addr() == p.cluster && !p.given,
		})
	}
	if len(p.services) == 0 {
		return without
	}
	return nil
}

// redirectedVIPs are the given services, or what -localip asks us to serve.
func (d *daemon) redirectedVIPs(given []netip.AddrPort) []netip.AddrPort {
	var vips []netip.AddrPort
	for _, ap := range given {
		if ap.Port() == 0 {
			ap = netip.AddrPortFrom(ap.Addr(), d.opts.DNSPort)
		}
		if !slices.Contains(vips, ap) {
			vips = append(vips, ap)
		}
	}
	if len(given) > 0 {
		return vips
	}
	for _, a := range d.opts.LocalIPs {
		if !a.IsLoopback() {
			vips = append(vips, netip.AddrPortFrom(a, d.opts.DNSPort))
		}
	}
	return vips
}

// fallbacksFor are those of the service's address family that are not redirected
// themselves.
func fallbacksFor(vip netip.AddrPort, vips, all []netip.AddrPort) []netip.AddrPort {
	var some []netip.AddrPort
	for _, ap := range all {
		if ap.Addr().Is4() == vip.Addr().Is4() && !slices.Contains(vips, ap) {
			some = append(some, ap)
		}
	}
	return some
}

// withPinned are the services with the fallbacks that a predecessor has pinned, as
// far as there are any.
func (p redirectPlan) withPinned(pinned []bpf.Pinned) []bpf.Service {
	services := slices.Clone(p.services)
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

// targets hands out one target for each service: a socket that asks two of them
// can tell the replies apart by the port.
type targets struct {
	nodes func(v6 bool) (netip.Addr, error)
	given []config.RedirectTarget
	next  map[bool]int // services so far, by being IPv6
}

func (t *targets) forService(vip netip.AddrPort) (netip.AddrPort, error) {
	v6 := vip.Addr().Is6()
	addr, port := netip.Addr{}, uint16(0)
	for _, g := range t.given {
		if g.Addr.IsValid() && g.Addr.Is6() == v6 {
			addr = g.Addr
			if g.Port != 0 {
				port = g.Port
			}
		}
		if !g.Addr.IsValid() && port == 0 {
			port = g.Port
		}
	}
	if port == 0 {
		port = defaultTargetPort
	}
	if !addr.IsValid() {
		var err error
		if addr, err = t.nodes(v6); err != nil {
			return netip.AddrPort{}, err
		}
	}
	n := int(port) + t.next[v6]
	t.next[v6]++
	if n > 65535 {
		return netip.AddrPort{}, fmt.Errorf("no port is left after %d for further services", port)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}

var errNodeAddress = errors.New("the node's address is not known, set -node-ip")

// nodeAddresses returns the node's address: as the flag says, the environment,
// or the default route. If none does it is errNodeAddress.
func (d *daemon) nodeAddresses(v6 bool) (netip.Addr, error) {
	pick := func(list []netip.Addr) netip.Addr {
		for _, a := range list {
			if a.Is6() == v6 {
				return a
			}
		}
		return netip.Addr{}
	}
	if a := pick(d.opts.Redirect.NodeIPs); a.IsValid() {
		return a, nil
	}
	for _, name := range []string{"NODE_IP", "HOST_IP"} {
		text := d.opts.Getenv(name)
		if text == "" {
			continue
		}
		list, err := config.ParseHostAddrs(text)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("environment variable %s: %w", name, err)
		}
		if a := pick(list); a.IsValid() {
			return a, nil
		}
	}
	a, err := netsetup.SourceAddress(v6)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errNodeAddress, err)
	}
	return a, nil
}

// isTarget reports whether a is what a service is redirected to.
func (p redirectPlan) isTarget(a netip.AddrPort) bool {
	return slices.ContainsFunc(p.services, func(s bpf.Service) bool { return s.Target == a })
}

// vips are what is redirected.
func (p redirectPlan) vips() []netip.AddrPort {
	var vips []netip.AddrPort
	for _, s := range p.services {
		vips = append(vips, s.VIP)
	}
	return vips
}

// equal is whether two plans come to the same for the kernel and the listeners.
func (p redirectPlan) equal(q redirectPlan) bool {
	p.settings.File, p.settings.Line = q.settings.File, q.settings.Line
	return errorText(p.err) == errorText(q.err) && reflect.DeepEqual(p.withoutErr(), q.withoutErr())
}

func (p redirectPlan) withoutErr() redirectPlan {
	p.err = nil
	return p
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// bindings serve on each target the zones that are served at its VIP; where
// nothing is bound to that, all that are served on its port.
func (p redirectPlan) bindings(byAddr map[netip.AddrPort][]*server.Zone, gate *server.Gate) ([]server.Binding, error) {
	if p.settings.Mode == config.RedirectOff || p.err != nil {
		return nil, nil
	}
	var bindings []server.Binding
	for _, s := range p.services {
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
