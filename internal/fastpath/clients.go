package fastpath

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// client is an address and the interface on which its queries arrive at the
// daemon's sockets: the pod's own veth or its bridge.
type client struct {
	addr    netip.Addr
	arrival int
}

// lease says when to look at a client again.
type lease struct {
	veth  int       // 0: the kernel may not answer the client
	next  time.Time // renew or find out again
	found time.Time // when a client was found behind a bridge
}

// clients are those that the daemon's sockets have heard. It is safe for concurrent
// use.
type clients struct {
	mu       sync.Mutex
	known    *simplelru.LRU[client, lease]
	attached map[int]bool // veths with the program
	bridges  map[int]bool // that have such veths as ports
	unknown  chan client  // behind bridges
}

const (
	maxClients = 4096
	// again is the time after which an address behind a bridge is looked up again.
	again = time.Second
	// stay is the time for which a client is taken to be behind a port of a bridge.
	stay = time.Minute
)

func (c *clients) init() {
	c.known, _ = simplelru.NewLRU[client, lease](maxClients, nil) // fails for sizes below 1 only
	c.unknown = make(chan client, 64)
}

// Heard implements server.Fastpath. The kernel answers a client only while the daemon's
// sockets go on hearing it: if a policy of the CNI drops the client's queries, or the
// daemon hangs, the kernel stops when the lease ends.
//
// A pod on a bridge may send with another pod's address, and obtain a lease for that
// pod although a policy forbids that pod's queries. So a client on a bridge gets a lease
// only for a query that the program has seen on the client's own port.
func (c *Controller) Heard(addr netip.AddrPort, id uint16, arrival int) bool {
	if c.kernel == nil {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clients.heard(c.kernel, client{addr.Addr(), arrival}, c.plan.Lease, time.Now(),
		func() int { return c.kernel.PassedOn(addr, id) })
}

// leaser is the part of bpf.Fastpath that gives leases.
type leaser interface {
	Lease(ifindex int, client netip.Addr, d time.Duration)
}

// heard gives or renews a lease. passedOn returns the interface on which the program has
// passed the query.
func (c *clients) heard(kernel leaser, from client, d time.Duration, now time.Time, passedOn func() int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, known := c.known.Get(from)
	switch {
	case known && now.Before(l.next):
	case c.attached[from.arrival]:
		l.veth, l.next = from.arrival, now.Add(d/2)
		kernel.Lease(l.veth, from.addr, d)
		c.known.Add(from, l)
	case known && l.veth != 0 && now.Before(l.found.Add(stay)):
		if passedOn() == l.veth {
			kernel.Lease(l.veth, from.addr, d)
			l.next = now.Add(d / 2)
			c.known.Add(from, l)
		}
	case c.bridges[from.arrival]:
		l = lease{next: now.Add(again)}
		c.known.Add(from, l)
		select {
		case c.unknown <- from:
		default: // a later query asks again
		}
	}
	return l.veth != 0
}

// found says behind which veth a client on a bridge is.
func (c *clients) found(from client, veth int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached[veth] {
		c.known.Add(from, lease{veth: veth, found: time.Now()})
	}
}

// use replaces the veths with the program and their bridges. It forgets the clients of
// other veths.
func (c *clients) use(attached, bridges map[int]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached, c.bridges = attached, bridges
	for _, from := range c.known.Keys() {
		if l, _ := c.known.Peek(from); l.veth != 0 && !attached[l.veth] {
			c.known.Remove(from)
		}
	}
}
