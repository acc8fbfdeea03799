package fastpath

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/internal/config"
)

// State is what the running daemon reports.
type State struct {
	Loaded bool              // it has loaded the program
	Leases map[string]uint64 // by interface that has the program
}

// PrintStatus prints what Status returns.
func PrintStatus(w io.Writer, plan Plan, read func() (State, error)) (asWanted bool) {
	lines, asWanted := Status(plan, read)
	for _, i := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(w, "fastpath\t%s\n", lines[i])
	}
	return asWanted
}

// Status says for each pod's interface, by index, whether the kernel answers there, and
// why not. 0 stands for all interfaces. read reads the state of the daemon. asWanted is
// false if the mode is on and no interface that should have the program has it.
func Status(plan Plan, read func() (State, error)) (lines map[int]string, asWanted bool) {
	if !plan.Wanted() {
		return nil, true
	}
	links, err := podLinks("veth")
	netkits, err2 := podLinks("netkit")
	if err := errors.Join(err, err2); err != nil {
		return map[int]string{0: fmt.Sprintf("unknown: %v", err)}, false
	}
	lines = make(map[int]string)
	state, err := read()
	switch {
	case err != nil:
		return map[int]string{0: fmt.Sprintf("unknown: cannot read the state: %v", err)}, plan.Mode != config.FastpathOn
	case !state.Loaded:
		return map[int]string{0: "nodens answers all queries: it has not loaded the program (see its log)"}, plan.Mode != config.FastpathOn
	case len(links) == 0:
		lines[0] = "no pod has a veth on this node"
	}
	n := newNodeState(plan, state)
	for _, l := range append(links, netkits...) {
		lines[l.Attrs().Index] = n.line(l)
	}
	wanted := slices.ContainsFunc(links, func(l netlink.Link) bool { return n.err != nil || n.allowed(l.Attrs().NetNsID) })
	return lines, plan.Mode != config.FastpathOn || !wanted || len(state.Leases) > 0
}

// nodeState is what decides whether the kernel answers on an interface.
type nodeState struct {
	State
	plan    Plan
	pods    map[int]config.PodName // see podsByNetns; none if they cannot be found
	allowed func(netns int) bool   // see newOptOut
	err     error                  // of podsByNetns, if pods opt out
}

func newNodeState(plan Plan, s State) nodeState {
	pods, err := podsByNetns(plan)
	if len(plan.OptOut) == 0 {
		err = nil // /var/log/pods may not be mounted
	}
	return nodeState{State: s, plan: plan, pods: pods, allowed: plan.optOut(pods), err: err}
}

// line names an interface and its pod, and says whether the kernel answers there.
func (n nodeState) line(l netlink.Link) string {
	a := l.Attrs()
	name := a.Name
	if pod := n.pods[a.NetNsID]; pod.Name != "" {
		name += " (" + pod.String() + ")"
	}
	leases, attached := n.Leases[a.Name]
	switch {
	case leases > 0:
		return fmt.Sprintf("%s: the kernel answers %d addresses", name, leases)
	case attached:
		return fmt.Sprintf("%s: no lease; within %v nodens answered no UDP query of this pod from the cache that qualifies: over the pod's veth or bridge, to an address of bind or -localip, in a zone that the kernel answers", name, n.plan.Lease)
	}
	return name + ": nodens answers; " + n.whyNot(l.Type(), a.NetNsID)
}

// whyNot says why the program is not on an interface.
func (n nodeState) whyNot(kind string, netns int) string {
	pod, known := n.pods[netns]
	switch {
	case kind != "veth":
		return "the kernel answers on veths only, and this is a " + kind + " device"
	case n.err != nil:
		return fmt.Sprintf("because of opt_out nodens must know the pod: %v", n.err)
	case !known && !n.allowed(netns):
		return "because of opt_out nodens must know the pod, and it finds no process of the pod"
	case pod.Name == "" && !n.allowed(netns):
		return "because of opt_out nodens must know the pod's name, and " + n.plan.PodLogs + " has no directory of the pod's logs"
	case !n.allowed(netns):
		return "the pod opts out"
	case len(n.Leases) >= MaxInterfaces:
		return fmt.Sprintf("the program is on %d interfaces, the limit", MaxInterfaces)
	}
	return "the program is not attached yet, or attaching it failed (see the log)"
}
