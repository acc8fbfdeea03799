package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// serviceTable holds the services and settings that the pinned maps have while this
// process holds the canary. The owner holds the lock of its Redirect.
type serviceTable struct {
	maps     *redirectMaps
	exempts  *exemptions
	log      *slog.Logger
	timeout  time.Duration              // of the heartbeat
	services map[netip.AddrPort]Service // by VIP
}

// apply writes the services and settings to the pinned maps and removes other
// services.
func (t *serviceTable) apply() error {
	for vip, s := range t.services {
		if err := t.put(vip, s); err != nil {
			return err
		}
	}
	if err := errors.Join(t.putSettings(), t.putOrigins()); err != nil {
		return err
	}
	return t.removeOthers()
}

// putOrigins writes the VIP of each target and fallback, and removes others.
func (t *serviceTable) putOrigins() error {
	want := make(map[redirectEndpoint]redirectEndpoint)
	for vip, s := range t.services {
		for _, to := range append([]netip.AddrPort{s.Target}, s.Fallbacks...) {
			want[toEndpoint(to)] = toEndpoint(vip)
		}
	}
	var errs []error
	for to, vip := range want {
		errs = append(errs, t.maps.Origins.Put(to, vip))
	}
	var to, vip redirectEndpoint
	var stale []redirectEndpoint
	iter := t.maps.Origins.Iterate()
	for iter.Next(&to, &vip) {
		if _, ok := want[to]; !ok {
			stale = append(stale, to)
		}
	}
	for _, to := range stale {
		if err := t.maps.Origins.Delete(to); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(append(errs, iter.Err())...); err != nil {
		return explain("put origins", err)
	}
	return nil
}

// put keeps a predecessor's fallbacks if s has none.
func (t *serviceTable) put(vip netip.AddrPort, s Service) error {
	if len(s.Fallbacks) == 0 && !s.PassThrough {
		old, err := t.pinnedFallbacks(vip)
		if err != nil {
			return err
		}
		if s.Fallbacks = old; old != nil {
			t.log.Info("adopted a predecessor's fallbacks", "service", vip, "fallbacks", old)
			t.services[vip] = s
		}
	}
	value := s.value()
	if err := t.maps.Services.Put(toEndpoint(vip), &value); err != nil {
		return explain(fmt.Sprintf("put service %s", vip), err)
	}
	return nil
}

// value returns s as struct service.
func (s *Service) value() redirectService {
	v := redirectService{Target: toEndpoint(s.Target), Fallbacks: uint32(len(s.Fallbacks))}
	for i, ap := range s.Fallbacks {
		v.Fallback[i] = toEndpoint(ap)
	}
	if s.LastResort.IsValid() {
		v.LastResort = toEndpoint(s.LastResort)
	}
	if s.PassThrough {
		v.Flags |= uint32(redirectServiceFlagsSERVICE_PASS_THROUGH)
	}
	if s.Proxied {
		v.Flags |= uint32(redirectServiceFlagsSERVICE_PROXIED)
	}
	return v
}

func (t *serviceTable) pinnedFallbacks(vip netip.AddrPort) ([]netip.AddrPort, error) {
	var v redirectService
	err := t.maps.Services.Lookup(toEndpoint(vip), &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(fmt.Sprintf("look up service %s", vip), err)
	}
	var eps []netip.AddrPort
	for _, e := range v.Fallback[:min(int(v.Fallbacks), MaxFallbacks)] {
		eps = append(eps, fromEndpoint(e))
	}
	return eps, nil
}

func (t *serviceTable) putSettings() error {
	set := redirectSettings{HeartbeatTimeout: uint64(t.timeout.Nanoseconds())}
	var ports []uint16
	for vip := range t.services {
		if !slices.Contains(ports, vip.Port()) {
			ports = append(ports, vip.Port())
		}
	}
	for i, port := range ports {
		set.Ports[i] = networkPort(port)
	}
	ids, err := t.exempts.optedOut()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		set.OptedOut = 1
	}
	if err := t.maps.Config.Put(uint32(0), &set); err != nil {
		return explain("put settings", err)
	}
	return nil
}

func (t *serviceTable) removeOthers() error {
	var key redirectEndpoint
	var value redirectService
	var stale []netip.AddrPort
	iter := t.maps.Services.Iterate()
	for iter.Next(&key, &value) {
		if vip := fromEndpoint(key); t.services[vip].VIP != vip {
			stale = append(stale, vip)
		}
	}
	if err := iter.Err(); err != nil {
		return explain("list services", err)
	}
	for _, vip := range stale {
		if err := t.maps.Services.Delete(toEndpoint(vip)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain(fmt.Sprintf("remove service %s", vip), err)
		}
		t.log.Info("removed a predecessor's service", "service", vip)
	}
	return nil
}

// Services returns the services, with the fallbacks that they have now, by VIP.
func (r *Redirect) Services() []Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Collect(maps.Values(r.table.services))
	slices.SortFunc(list, func(a, b Service) int { return a.VIP.Compare(b.VIP) })
	return list
}

// SetFallbacks replaces the fallbacks of the service at vip. Without any, the kernel
// does not redirect while the daemon is not alive. They outlive the process. While
// another process holds the canary, SetFallbacks only keeps them, and Alive writes
// them: an entry also contains our target, which may not be served yet.
func (r *Redirect) SetFallbacks(vip netip.AddrPort, endpoints []netip.AddrPort) error {
	vip = unmap(vip)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	s, ok := r.table.services[vip]
	if !ok || s.PassThrough {
		return fmt.Errorf("redirect: set fallbacks of %s: not a service that has fallbacks", vip)
	}
	used, err := checkFallbacks(vip, endpoints)
	if err != nil {
		return fmt.Errorf("redirect: set fallbacks of %s: %w", vip, err)
	}
	for _, ap := range used {
		if _, ok := r.table.services[ap]; ok {
			return fmt.Errorf("redirect: set fallbacks of %s: %s is redirected itself", vip, ap)
		}
	}
	s.Fallbacks = used
	return r.change(s)
}

// SetLastResort replaces the last resort of the service at vip. An invalid address
// removes it.
func (r *Redirect) SetLastResort(vip, to netip.AddrPort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	s, ok := r.table.services[unmap(vip)]
	if !ok || s.LastResort == to {
		return nil
	}
	s.LastResort = to
	return r.change(s)
}

// change writes a changed service to the map. It needs mu.
func (r *Redirect) change(s Service) error {
	vip := s.VIP
	r.table.services[vip] = s
	holder, err := canaryCookie(r.objs.Canary)
	if err != nil || holder != 0 && (r.canary == nil || holder != r.canary.cookie) {
		return err
	}
	value := s.value()
	if err := r.objs.Services.Put(toEndpoint(vip), &value); err != nil {
		return explain(fmt.Sprintf("redirect: set fallbacks of %s", vip), err)
	}
	return r.table.putOrigins()
}
