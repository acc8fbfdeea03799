package fastpath

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestStatusLines: each reason for which the kernel does not answer on an interface has
// its own line. The line names the pod if that is known.
func TestStatusLines(t *testing.T) {
	const known, unknown, nameless = 3, 4, 5 // network namespaces
	pods := map[int]config.PodName{known: {Namespace: "team-b", Name: "web-0"}, nameless: {}}
	full := make(map[string]uint64)
	for i := range MaxInterfaces {
		full[fmt.Sprintf("full%d", i)] = 1
	}
	for _, c := range []struct {
		kind, iface string
		netns       int
		leases      map[string]uint64
		allowed     bool
		err         error
		want        string
	}{
		{"veth", "cali1", known, map[string]uint64{"cali1": 2, "cali2": 0}, true, nil, "cali1 (team-b/web-0): the kernel answers 2 addresses"},
		{"veth", "cali2", unknown, map[string]uint64{"cali1": 2, "cali2": 0}, true, nil, "cali2: no lease; within 5s nodens answered no UDP query"},
		{"netkit", "lxc1", unknown, nil, true, nil, "lxc1: nodens answers; the kernel answers on veths only, and this is a netkit device"},
		{"veth", "cali1", known, nil, false, nil, "cali1 (team-b/web-0): nodens answers; the pod opts out"},
		{"veth", "cali2", unknown, nil, false, nil, "cali2: nodens answers; because of opt_out nodens must know the pod, and it finds no process"},
		{"veth", "cali2", nameless, nil, false, nil, "cali2: nodens answers; because of opt_out nodens must know the pod's name, and /var/log/pods has no"},
		{"veth", "cali2", unknown, nil, false, errors.New("no kubepods"), "cali2: nodens answers; because of opt_out nodens must know the pod: no kubepods"},
		{"veth", "cali2", unknown, full, true, nil, "cali2: nodens answers; the program is on 512 interfaces, the limit"},
		{"veth", "cali2", unknown, map[string]uint64{"cali1": 2}, true, nil, "cali2: nodens answers; the program is not attached yet, or attaching it failed (see the log)"},
	} {
		a := netlink.NewLinkAttrs()
		a.Name, a.NetNsID = c.iface, c.netns
		n := nodeState{State: State{Leases: c.leases}, plan: Plan{Lease: 5 * time.Second, PodLogs: "/var/log/pods"}, pods: pods, allowed: func(int) bool { return c.allowed }, err: c.err}
		if got := n.line(&netlink.GenericLink{LinkAttrs: a, LinkType: c.kind}); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
}
