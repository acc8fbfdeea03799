package netsetup

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
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
	done, ended := make(chan struct{}), make(chan error, 1)
	changed := make(chan struct{}, 1)
	go func() {
		ended <- ns.Do(func() error {
			return FollowLinks(done, changed)
		})
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for i, called := 0, false; !called; {
		select { // the first changes may come before the subscription
		case <-tick.C:
			i++
			ns.Inside(t, func() error {
				a := netlink.NewLinkAttrs()
				a.Name = fmt.Sprintf("lxc%d", i)
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: fmt.Sprintf("pod%d", i)})
			})
		case <-changed:
			called = true
		case <-timeout:
			t.Fatal("no call after a change")
		}
	}
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
