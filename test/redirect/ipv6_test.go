package redirect

import (
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip6      = "fd00:53::10"
	node6     = "fd00:50::2"
	outside6  = "fd00:50::1"
	endpoint6 = "fd00:50::7" // another DNS server, outside
)

// newNode6 is a node that has IPv6 as well, but for the pod's way to the VIP.
func newNode6(t *testing.T) *node {
	t.Helper()
	n := newNode(t, lab.RouteFIB)
	n.Node.AddAddrs(t, "lxc0", "fd00:1::1/64")
	n.Pod.AddAddrs(t, "eth0", "fd00:1::5/64")
	n.Node.AddAddrs(t, "up0", node6+"/64")
	n.Outside.AddAddrs(t, "eth0", outside6+"/64", endpoint6+"/64")
	n.Pod.AddRoute(t, node6+"/128", "fd00:1::1")
	n.Node.AddRoute(t, "::/0", outside6)
	return n
}

// TestIPv6: VIPs of both families are redirected each to its target, over UDP and
// TCP; the IPv6 target answers nobody from outside either. A pod has no route to
// the IPv6 VIP itself.
func TestIPv6(t *testing.T) {
	n := newNode6(t)
	both := strings.Replace(corefile, "bind "+vip, "bind "+vip+" "+vip6, 2)
	d := n.start(t, both, "-localip", vip+","+vip6, "-redirect", "on", "-redirect-fallback", lab.Endpoint+","+endpoint6)
	d.Err.WaitFor(t, 0, `sockets are redirected" service=.?\[`+vip6)
	for _, network := range []string{"+notcp", "+tcp"} {
		for server, want := range map[string]string{vip: ownAnswer, vip6: ownAnswer, node6: ownAnswer} {
			port := "53"
			if server == node6 {
				port = "20053"
			}
			// A late heartbeat sends pods to the fallback, where nobody is.
			got := n.ask6(t, n.Pod, n.PodCgroup, server, port, network)
			for late := time.Now().Add(lab.Patience); got != want && time.Now().Before(late); {
				got = n.ask6(t, n.Pod, n.PodCgroup, server, port, network)
			}
			if got != want {
				t.Errorf("%s, %s: %s, want %s", server, network, got, want)
			}
		}
		if got := n.ask6(t, n.Pod, "", vip6, "53", network); got != lost {
			t.Errorf("the VIP is reached without redirection (%s): %s; this tests nothing", network, got)
		}
		before, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
		if got := n.ask6(t, n.Outside, "", node6, "20053", network); got != lost {
			t.Errorf("outside, %s: %s", network, got)
		}
		n.awaitRefused(t, before)
	}
}

func (n *node) ask6(t *testing.T, from *lab.Netns, cgroup, server, port, network string) string {
	t.Helper()
	args := []string{"dig", "+short", "+tries=1", "+time=2", "-p", port, "@" + server, "www.example.org", "A", network}
	stdout, _, status := lab.Command{Netns: from, Cgroup: cgroup, Args: args}.Output(t)
	if got := strings.TrimSpace(stdout); status == 0 && !strings.Contains(got, ";;") {
		return got
	}
	return lost
}
