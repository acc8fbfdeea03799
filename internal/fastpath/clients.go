package fastpath

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/nodens-dns/nodens/bpf"
)

// client is an address and the interface on which its queries arrive at the
// daemon's sockets: the pod's own veth or its bridge.
type client struct {
	addr    netip.Addr
	arrival int
}

// lease says when to look at a client again.
type lease struct {
	veth int       // 0: the kernel may not answer the client
	next time.Time // renew or find out again
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
)

func (c *clients) init() {
	c.known, _ = simplelru.NewLRU[client, lease](maxClients, nil) // fails for sizes below 1 only
	c.unknown = make(chan client, 64)
}

// Heard implements server.Fastpath. The kernel answers a client only while the
// daemon's sockets go on hearing it: a policy of the CNI that drops the client's
// queries has effect when the lease ends, and so has a daemon that hangs.
func (c *Controller) Heard(addr netip.Addr, arrival int) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kernel != nil && c.clients.heard(c.kernel, client{addr, arrival}, c.plan.Lease, time.Now())
}

func (c *clients) heard(kernel *bpf.Fastpath, from client, d time.Duration, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, known := c.known.Get(from)
	switch {
	case known && now.Before(l.next):
	case known && l.veth != 0 || c.attached[from.arrival]:
		if l.veth == 0 {
			l.veth = from.arrival
		}
		kernel.Lease(l.veth, from.addr, d)
		l.next = now.Add(d / 2)
		c.known.Add(from, l)
	case c.bridges[from.arrival]:
		c.known.Add(from, lease{next: now.Add(again)})
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
		c.known.Add(from, lease{veth: veth})
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
