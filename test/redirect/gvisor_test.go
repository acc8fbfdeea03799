package redirect

import (
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestGVisor: the sockets of a pod in gVisor's sandbox are not in the node's kernel and so
// are not redirected. The pod reaches nodens if the CNI delivers its packets to the local
// address. It has no fallback, and reaches a cluster IP through the service proxy only.
func TestGVisor(t *testing.T) {
	for _, tc := range []struct {
		name string
		mode lab.CNIMode
		vip  string // the answer at the local address
	}{
		{"M0 legacy", lab.RouteLegacy, ownAnswer},
		{"M1 FIB", lab.RouteFIB, lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.mode)
			d := n.start(t, redirecting(corefile, "on", fallback, "service "+lab.ClusterDNS))
			n.expect(t, "a socket of the node's kernel", lab.ClusterDNS, ownAnswer)
			g := lab.StartGVisor(t, n.Pod, n.PodCgroup, nil)
			expect := func(when, server, port, want string) {
				t.Helper()
				timeout := "+time=20"
				if want == lost {
					timeout = "+time=2"
				}
				if got := digIn(t, g, server, port, timeout); got != want {
					t.Errorf("%s: %s, want %s", when, got, want)
				}
			}
			expect("local address", vip, "53", tc.vip)
			expect("cluster IP", lab.ClusterDNS, "53", lab.ClusterDNS)
			expect("target", lab.NodeIP, "20053", ownAnswer)
			stdout, stderr, _ := n.run(t, "doctor", "-pod", n.Pod.Path(), "-conf", d.Conf, "-localip", vip, "-kubepods", n.Kubepods, "-redirect-pin-dir", n.pinDir)
			if want := "its sockets are not redirected"; !strings.Contains(stdout, want) {
				t.Errorf("doctor lacks %q:\n%s%s", want, stdout, stderr)
			}
			d.Kill()
			expect("killed", vip, "53", lost)
			expect("cluster IP, killed", lab.ClusterDNS, "53", lab.ClusterDNS)
		})
	}
}

// digIn queries from a sandbox and returns the address in the answer, or lost.
func digIn(t *testing.T, g *lab.GVisor, server, port, timeout string) string {
	t.Helper()
	stdout, _, status := g.Output(t, nil, "dig", "+short", "+tries=1", timeout, "-p", port, "@"+server, "www.example.org", "A")
	if status != 0 {
		return lost
	}
	return strings.TrimSpace(stdout)
}
