package netsetup

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// How much Outside remembers and asks.
const (
	outsideFor   = 30 * time.Second // what was found is believed
	outsideKnown = 4096             // addresses remembered
	outsideRate  = 500              // questions to the kernel, per second
)

// Outside tells whether an address is out on the internet: whether nothing but
// the default route leads to it. The host's own addresses, its links' subnets,
// pods and whatever else a route names are inside. A host without a default
// route has no outside. It is safe for concurrent use.
//
// The kernel is asked at most outsideRate times a second, so that a flood of
// made-up addresses costs little; while it lasts an address that is not known
// counts as outside.
type Outside struct {
	now func() time.Time

	mu     sync.Mutex
	routes *netlink.Handle
	known  map[netip.Addr]located
	asked  int       // since second
	second time.Time // when the counting of asked began
}

// located is what was found of an address.
type located struct {
	outside bool
	until   time.Time
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
	return &Outside{now: now, routes: k.links, known: make(map[netip.Addr]located)}
}

// Has reports whether a, which is not v4-mapped, is outside.
func (o *Outside) Has(a netip.Addr) bool {
	if a.IsLoopback() || a.IsLinkLocalUnicast() && a.Is6() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	l, ok := o.known[a]
	if ok && now.Before(l.until) {
		return l.outside
	}
	if !o.mayAsk(now) {
		return !ok || l.outside
	}
	if len(o.known) >= outsideKnown {
		o.forget()
	}
	l = located{o.find(a), now.Add(outsideFor)}
	o.known[a] = l
	return l.outside
}

// forget makes room: by the addresses that are outside, which may be made up,
// and if there are none by all.
func (o *Outside) forget() {
	before := len(o.known)
	maps.DeleteFunc(o.known, func(_ netip.Addr, l located) bool { return l.outside })
	if len(o.known) == before {
		clear(o.known)
	}
}

// mayAsk counts a question to the kernel.
func (o *Outside) mayAsk(now time.Time) bool {
	if now.Sub(o.second) >= time.Second {
		o.second, o.asked = now, 0
	}
	o.asked++
	return o.asked <= outsideRate
}

// find asks the kernel. It takes an address that the kernel has no route to for
// outside, as no reply would reach it, and one that the kernel says nothing of
// for inside.
func (o *Outside) find(a netip.Addr) bool {
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
