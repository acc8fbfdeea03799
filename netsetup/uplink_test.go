package netsetup

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkedNode makes links like a node's: an uplink with the default route, a pod's
// link, a bridge of pods' links, and a bridge with a tunnel as a port.
func linkedNode(t *testing.T) *namespace {
	t.Helper()
	ns := newNamespace(t)
	ns.Inside(t, func() error {
		add := func(l netlink.Link) error {
			if err := netlink.LinkAdd(l); err != nil {
				return fmt.Errorf("add %s: %w", l.Attrs().Name, err)
			}
			return netlink.LinkSetUp(l)
		}
		attrs := func(name string) netlink.LinkAttrs {
			a := netlink.NewLinkAttrs()
			a.Name = name
			return a
		}
		up := &netlink.Veth{LinkAttrs: attrs("up0"), PeerName: "up0-peer"}
		pods, outside := &netlink.Bridge{LinkAttrs: attrs("cni0")}, &netlink.Bridge{LinkAttrs: attrs("br-ex")}
		for _, l := range []netlink.Link{up, &netlink.Veth{LinkAttrs: attrs("lxc0"), PeerName: "pod0"}, pods, outside} {
			if err := add(l); err != nil {
				return err
			}
		}
		port, tunnel := attrs("lxc1"), attrs("vxlan0")
		port.MasterIndex, tunnel.MasterIndex = pods.Index, outside.Index
		if err := add(&netlink.Veth{LinkAttrs: port, PeerName: "pod1"}); err != nil {
			return err
		}
		if err := add(&netlink.Vxlan{LinkAttrs: tunnel, VxlanId: 5, Port: 4789}); err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("192.0.2.7/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(up, addr); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 1)})
	})
	return ns
}

func TestUplinks(t *testing.T) {
	ns := linkedNode(t)
	for _, tc := range []struct {
		named []string
		want  string
	}{
		{nil, "[br-ex up0 vxlan0]"},
		{[]string{"lxc0", "missing"}, "[lxc0]"},
	} {
		names := map[string]bool{}
		ns.Inside(t, func() error {
			uplinks, err := Uplinks(tc.named)
			for _, u := range uplinks {
				l, err := netlink.LinkByIndex(u.Index)
				if err != nil || l.Attrs().Name != u.Name {
					return fmt.Errorf("index %d is not that of %s: %v", u.Index, u.Name, err)
				}
				names[u.Name] = true
			}
			return err
		})
		if got := fmt.Sprint(slices.Sorted(maps.Keys(names))); got != tc.want {
			t.Errorf("named %v: %s, want %s", tc.named, got, tc.want)
		}
	}
}

func TestLinkKinds(t *testing.T) {
	for kind, want := range map[string]bool{
		"device": true, "vlan": true, "vxlan": true, "geneve": true, "wireguard": true, "ipip": true, "tuntap": true,
		"veth": false, "netkit": false, "bridge": false, "dummy": false, "ipvlan": false, "openvswitch": false,
	} {
		if got := isOutward(&netlink.GenericLink{LinkType: kind}); got != want {
			t.Errorf("%s: %t", kind, got)
		}
	}
	if isOutward(&netlink.GenericLink{LinkType: "device", LinkAttrs: netlink.LinkAttrs{Flags: net.FlagLoopback}}) {
		t.Error("lo counts as an uplink")
	}
}

func TestSourceAddress(t *testing.T) {
	ns := linkedNode(t)
	ns.Inside(t, func() error {
		if a, err := SourceAddress(false); err != nil || a.String() != "192.0.2.7" {
			t.Errorf("IPv4: %v, %v", a, err)
		}
		if a, err := SourceAddress(true); err == nil {
			t.Errorf("without a default route: %v", a)
		}
		return nil
	})
}

func TestFollowLinks(t *testing.T) {
	ns := newNamespace(t)
	testFollowLinks(t, ns, func(ctx context.Context, changed chan<- struct{}) error {
		return ns.Do(func() error { return FollowLinks(ctx, changed) })
	})
}

// TestLostEvents: when many pods start at once, the kernel drops events. nodens goes on
// following.
func TestLostEvents(t *testing.T) {
	ns := newNamespace(t)
	conn, err := subscribe(ns.FD(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	check(t, err)
	check(t, conn.SetReadBuffer(1))
	for i := range 30 {
		ns.addVeth(t, fmt.Sprintf("lost%d", i))
	}
	testFollowLinks(t, ns, func(ctx context.Context, changed chan<- struct{}) error {
		return followLinks(ctx, conn, changed)
	})
}

// testFollowLinks checks that follow signals changes more than once.
func testFollowLinks(t *testing.T, ns *namespace, follow func(context.Context, chan<- struct{}) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended, changed := make(chan error, 1), make(chan struct{}, 1)
	go func() { ended <- follow(ctx, changed) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for i, signals := 0, 0; signals < 3; {
		select { // the first changes may come before the subscription
		case <-tick.C:
			i++
			ns.addVeth(t, fmt.Sprintf("lxc%d", i))
		case <-changed:
			signals++
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		case <-timeout:
			t.Fatal("no signal after a change")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (ns *namespace) addVeth(t *testing.T, name string) {
	t.Helper()
	ns.Inside(t, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name + "-peer"})
	})
}
