package netsetup

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Limits of Outside.
const (
	outsideTTL   = 30 * time.Second // of a result
	outsideCache = 4096             // results inside, and as many outside
	outsideRate  = 500              // route lookups per second
)

// Outside decides whether an address is on the internet, that is, whether only the
// default route leads to it. The host's own addresses, its links' subnets, pods and
// other destinations with a route are inside. It is safe for concurrent use.
//
// It looks up at most outsideRate routes a second, so that a flood of spoofed
// addresses costs little. During a flood, an address without a cached result is
// outside. Results of addresses outside, which are easy to spoof, never evict
// results of addresses inside.
type Outside struct {
	now    func() time.Time
	routes *netlink.Handle

	mu              sync.Mutex                            // guards:
	inside, outside *simplelru.LRU[netip.Addr, time.Time] // expiry of results
	lookups         int                                   // since second
	second          time.Time                             // when counting lookups began
}

// NewOutside opens the rtnetlink socket of the caller's network namespace. It
// needs no privilege. now reads a monotonic clock.
func NewOutside(now func() time.Time) (*Outside, error) {
	k, err := openKernel(0)
	if err != nil {
		return nil, err
	}
	return newOutside(k, now), nil
}

func newOutside(k *kernel, now func() time.Time) *Outside {
	inside, _ := simplelru.NewLRU[netip.Addr, time.Time](outsideCache, nil) // fails only for size 0
	outside, _ := simplelru.NewLRU[netip.Addr, time.Time](outsideCache, nil)
	return &Outside{now: now, routes: k.links, inside: inside, outside: outside}
}

// Has reports whether a is outside. a must not be an IPv4-mapped IPv6 address.
func (o *Outside) Has(a netip.Addr) bool {
	if a.IsLoopback() || a.IsLinkLocalUnicast() && a.Is6() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if expiry, ok := o.inside.Get(a); ok && now.Before(expiry) {
		return false
	}
	if expiry, ok := o.outside.Get(a); ok && now.Before(expiry) {
		return true
	}
	if !o.mayLookUp(now) {
		return !o.inside.Contains(a)
	}
	to, from := o.inside, o.outside
	outside := o.lookUp(a)
	if outside {
		to, from = from, to
	}
	from.Remove(a)
	to.Add(a, now.Add(outsideTTL))
	return outside
}

// mayLookUp counts a lookup and applies the limit.
func (o *Outside) mayLookUp(now time.Time) bool {
	if now.Sub(o.second) >= time.Second {
		o.second, o.lookups = now, 0
	}
	o.lookups++
	return o.lookups <= outsideRate
}

// lookUp looks up the kernel's route. An address without a route is outside: no
// reply can reach it. If the lookup fails otherwise, the address is inside.
func (o *Outside) lookUp(a netip.Addr) bool {
	found, err := o.routes.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
	}
	for _, r := range found {
		if r.Dst == nil {
			return true
		}
		if ones, _ := r.Dst.Mask.Size(); ones == 0 {
			return true
		}
	}
	return false
}
