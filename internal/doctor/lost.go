package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// whyLost says why the pod's queries for a target on this node get no answer, and what
// to do. do is empty if the kind's advice applies. Each check excludes one cause. If no
// check finds the cause, it is a filter.
func (e *podExamination) whyLost(target netip.AddrPort) (why, do string) {
	source, err := routeFrom(e.place, target.Addr())
	if err != nil {
		return fmt.Sprintf("the pod has no route to %s (%v)", target.Addr(), err), "Give the pod a route to the node's address, or set -node-ip to an address that pods reach."
	}
	if o := e.query(context.Background(), e.node, "udp", target, chaos("id.server.")); !o.answered() {
		return fmt.Sprintf("it does not answer the node either (%s)", o.why()), "Check that nodens listens on the target, and read its log."
	}
	before := e.proc.reversePathDrops()
	e.query(context.Background(), e.place, "udp", target, chaos("id.server."))
	if dropped := e.proc.reversePathDrops() - before; dropped > 0 {
		return fmt.Sprintf("the node's reverse path filter dropped %d packets meanwhile; its route to the pod %s", dropped, wayBack(target.Addr(), source)),
			"Repair the node's route to the pod, or set net.ipv4.conf.LINK.rp_filter to 2 or 0 on the pod's link and for all."
	}
	if back := wayBack(target.Addr(), source); back == noWay || back == wayBack(target.Addr(), outside(target.Addr())) {
		return "the reply is lost: the node's route to the pod " + back, "Repair the node's route to the pod."
	}
	return "a filter on the node drops them, at input or before" + e.suspects(), "Accept UDP and TCP to the target in the named chains (nft list ruleset, iptables-legacy -S), or remove the network policy."
}

// routeFrom returns the source address of a place's packets to an address.
func routeFrom(from place, to netip.Addr) (source netip.Addr, err error) {
	err = from.do(func() error {
		routes, err := netlink.RouteGet(to.AsSlice())
		if err == nil && len(routes) > 0 {
			source, _ = netip.AddrFromSlice(routes[0].Src)
		}
		return err
	})
	return source.Unmap(), err
}

// noWay is the result of wayBack without a route.
const noWay = "does not exist"

// outside returns an address that no pod has, reserved for documentation (RFC 5737, RFC
// 3849). The default route leads there. The way to a pod may be any other link: that of
// the pod, a bridge, or a link of the CNI such as cilium_host.
func outside(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return netip.MustParseAddr("2001:db8::1")
}

// wayBack says by which link the node sends packets from an address of its own to a
// pod.
func wayBack(from, pod netip.Addr) string {
	routes, err := netlink.RouteGetWithOptions(pod.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
	if err != nil || len(routes) == 0 {
		return noWay
	}
	return wayBy(routes[0].LinkIndex)
}

func wayBy(index int) string {
	name := strconv.Itoa(index)
	if l, err := netlink.LinkByIndex(index); err == nil {
		name = l.Attrs().Name
	}
	return "leads to " + name
}

// reversePathDrops returns how many packets rp_filter has dropped in this network
// namespace: IPReversePathFilter in /proc/net/netstat.
func (proc procfs) reversePathDrops() int {
	text, err := os.ReadFile(filepath.Join(string(proc), "thread-self/net/netstat"))
	if err != nil {
		return 0
	}
	lines := strings.Split(string(text), "\n") // pairs of names and values
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, "IPReversePathFilter"); at > 0 && at < len(values) {
			n, _ := strconv.Atoi(values[at])
			return n
		}
	}
	return 0
}

// suspects names the chains that drop by default.
func (e *examination) suspects() string {
	if len(e.filters) == 0 {
		return ""
	}
	return "; these chains drop by default: " + strings.Join(e.filters, ", ")
}
