package fastpath

import (
	"net/netip"
	"testing"
	"time"
)

// leased holds the interfaces on which leases were given.
type leased []int

func (l *leased) Lease(ifindex int, _ netip.Addr, _ time.Duration) { *l = append(*l, ifindex) }

// TestBridgedClient: a client on a bridge gets and keeps a lease only for queries that
// its own port passed. It is looked up again after some time.
func TestBridgedClient(t *testing.T) {
	const bridge, port, other, d = 2, 3, 4, 4 * time.Second
	var c clients
	c.init()
	c.use(map[int]bool{port: true, other: true}, map[int]bool{bridge: true})
	from, now := client{netip.MustParseAddr("10.2.0.5"), bridge}, time.Now()
	var got leased
	passed := func(on int) int {
		c.heard(&got, from, d, now, func() int { return on })
		return len(got)
	}
	if passed(port) != 0 || len(c.unknown) != 1 {
		t.Fatal("a client that is not known is not looked up first")
	}
	c.found(<-c.unknown, port)
	for _, on := range []int{0, other} {
		if passed(on) != 0 {
			t.Fatalf("a query that interface %d passed gives a lease", on)
		}
	}
	if passed(port) != 1 || got[0] != port {
		t.Fatalf("leases %v, want one on the port", got)
	}
	now = now.Add(d / 2)
	if passed(other) != 1 || passed(port) != 2 {
		t.Error("a forged query renews the lease, or the client's own does not")
	}
	now = now.Add(stay)
	if passed(port) != 2 || len(c.unknown) != 1 {
		t.Error("the client is not looked up again")
	}
}
