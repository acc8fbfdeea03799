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

// newNode6 returns a node that also has IPv6. Its pod has no route to the IPv6 VIP.
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

// TestIPv6: VIPs of both families are redirected to their targets, over UDP and
// TCP. The IPv6 target refuses queries from outside.
func TestIPv6(t *testing.T) {
	n := newNode6(t)
	both := strings.Replace(corefile, "bind "+vip, "bind "+vip+" "+vip6, 2)
	d := n.start(t, redirecting(both, "on", fallback+" "+endpoint6), "-localip", vip+","+vip6)
	d.Err.WaitFor(t, 0, `sockets are redirected" service=.?\[`+vip6)
	for _, network := range []string{"+notcp", "+tcp"} {
		for server, want := range map[string]string{vip: ownAnswer, vip6: ownAnswer, node6: ownAnswer} {
			port := "53"
			if server == node6 {
				port = "20053"
			}
			// A late heartbeat sends pods to the fallback, which has no server.
			got := n.dig6(t, n.Pod, n.PodCgroup, server, port, network)
			for deadline := time.Now().Add(lab.QueryTimeout); got != want && time.Now().Before(deadline); {
				got = n.dig6(t, n.Pod, n.PodCgroup, server, port, network)
			}
			if got != want {
				t.Errorf("%s, %s: %s, want %s", server, network, got, want)
			}
		}
		if got := n.dig6(t, n.Pod, "", vip6, "53", network); got != lost {
			t.Errorf("the pod reaches the VIP without redirection (%s): %s; this test proves nothing", network, got)
		}
		before, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
		if got := n.dig6(t, n.Outside, "", node6, "20053", network); got != lost {
			t.Errorf("outside, %s: %s", network, got)
		}
		n.waitForRefused(t, before)
	}
}

func (n *node) dig6(t *testing.T, from *lab.Netns, cgroup, server, port, network string) string {
	t.Helper()
	args := []string{"dig", "+short", "+tries=1", "+time=2", "-p", port, "@" + server, "www.example.org", "A", network}
	stdout, _, status := lab.Command{Netns: from, Cgroup: cgroup, Args: args}.Output(t)
	if got := strings.TrimSpace(stdout); status == 0 && !strings.Contains(got, ";;") {
		return got
	}
	return lost
}
