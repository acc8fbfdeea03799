package netsetup

import (
	"net/netip"
	"testing"
	"time"
)

// router makes a namespace like a node's: a link to a pod, a link to other nodes
// and the default router, and a route to a network behind another node.
func router(t *testing.T) *namespace {
	ns := newNamespace(t)
	for _, args := range [][]string{
		{"link", "add", "up0", "type", "veth", "peer", "name", "up1"},
		{"link", "add", "pod0", "type", "veth", "peer", "name", "pod1"},
		{"addr", "add", "192.0.2.10/24", "dev", "up0"},
		{"-6", "addr", "add", "2001:db8:1::10/64", "dev", "up0", "nodad"},
		{"link", "set", "up0", "up"}, {"link", "set", "up1", "up"},
		{"link", "set", "pod0", "up"}, {"link", "set", "pod1", "up"},
		{"route", "add", "10.244.0.5/32", "dev", "pod0"},
		{"-6", "route", "add", "fd00::5/128", "dev", "pod0"},
		{"route", "add", "10.244.1.0/24", "via", "192.0.2.11"},
	} {
		ns.Command(t, "ip", args...)
	}
	return ns
}

func outsideOf(t *testing.T, ns *namespace, now func() time.Time) *Outside {
	t.Helper()
	k, err := openKernel(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return newOutside(k, now)
}

func TestOutside(t *testing.T) {
	ns := router(t)
	inside := []string{"127.0.0.1", "::1", "192.0.2.10", "192.0.2.77", "10.244.0.5", "10.244.1.9", "2001:db8:1::99", "fd00::5", "fe80::1"}
	outside := []string{"198.51.100.1", "10.99.0.1", "2001:db8:ffff::1"}
	compare := func(when string, o *Outside) {
		t.Helper()
		for _, s := range inside {
			if o.Has(netip.MustParseAddr(s)) {
				t.Errorf("%s: %s is outside", when, s)
			}
		}
		for _, s := range outside {
			if !o.Has(netip.MustParseAddr(s)) {
				t.Errorf("%s: %s is inside", when, s)
			}
		}
	}
	compare("no default route", outsideOf(t, ns, time.Now)) // no reply is possible
	ns.Command(t, "ip", "route", "add", "default", "via", "192.0.2.1")
	ns.Command(t, "ip", "-6", "route", "add", "default", "via", "2001:db8:1::1")
	compare("default route", outsideOf(t, ns, time.Now))
}

// TestOutsideFollowsRoutes: a result expires.
func TestOutsideFollowsRoutes(t *testing.T) {
	ns := router(t)
	ns.Command(t, "ip", "route", "add", "default", "via", "192.0.2.1")
	now := time.Now()
	o := outsideOf(t, ns, func() time.Time { return now })
	pod := netip.MustParseAddr("10.244.0.6")
	if !o.Has(pod) {
		t.Fatal("inside before there is a route")
	}
	ns.Command(t, "ip", "route", "add", "10.244.0.6/32", "dev", "pod0")
	if now = now.Add(outsideTTL); o.Has(pod) {
		t.Error("outside although there is a route")
	}
}

// TestOutsideLimitsLookups: a flood of spoofed addresses causes few lookups, and
// cached results stay.
func TestOutsideLimitsLookups(t *testing.T) {
	ns := router(t)
	ns.Command(t, "ip", "route", "add", "default", "via", "192.0.2.1")
	now := time.Now()
	o := outsideOf(t, ns, func() time.Time { return now })
	pod := netip.MustParseAddr("10.244.0.5")
	if o.Has(pod) {
		t.Fatal("the pod is outside")
	}
	spoofed := netip.MustParseAddr("198.18.0.0")
	for range outsideRate - 1 {
		o.Has(spoofed)
		spoofed = spoofed.Next()
	}
	inside := netip.MustParseAddr("10.244.1.9") // if it is looked up
	if now = now.Add(time.Second - 1); !o.Has(inside) {
		t.Error("too many lookups")
	}
	if o.Has(pod) {
		t.Error("the flood evicted the pod")
	}
	if now = now.Add(time.Second); o.Has(inside) {
		t.Error("not looked up after the flood")
	}
	for i := range 2 * outsideCache {
		now = now.Add(time.Second / outsideRate)
		o.Has(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	if n := o.outside.Len(); n > outsideCache {
		t.Errorf("%d results cached, want at most %d", n, outsideCache)
	}
	for i := range outsideRate { // no lookup is left in this second
		o.Has(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	if o.Has(pod) {
		t.Error("spoofed addresses evicted the pod")
	}
}
