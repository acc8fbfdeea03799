package bpf

import (
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	labTarget = lab.NodeIP + ":10053"
	labCore   = lab.Endpoint + ":53"
	notFwded  = 4 // BPF_FIB_LKUP_RET_NOT_FWDED
)

// labNode is a node of the lab with the VIP, and a daemon to which sockets are
// redirected.
type labNode struct {
	*pod
	*lab.CNINode
	plain  *agent // in the pod's namespace, but not below kubepods
	daemon *daemon
	cfg    daemonConfig
}

func newLab(t *testing.T, mode lab.CNIMode) *labNode {
	t.Helper()
	spec, err := loadLab()
	check(t, err)
	n := lab.WireCNINode(t, spec, mode, "169.254.20.10")
	n.Node.Join(t, "nodelocaldns", []string{"169.254.20.10/32"}, n.Node, "nodelocalpeer", nil) // a veth in place of a dummy link
	l := &labNode{CNINode: n, pod: &pod{ns: n.Pod, kubepods: n.Kubepods, cgroup: n.PodCgroup}}
	serve(t, n.Outside, cluster4, "cluster")
	serve(t, n.Outside, labCore, "core")
	l.agent = startAgent(t, l.ns, l.cgroup)
	l.plain = startAgent(t, l.ns, filepath.Dir(l.kubepods))
	pinDir := filepath.Join(lab.BPFFS, strings.ReplaceAll(t.Name(), "/", "_"))
	t.Cleanup(func() {
		if err := Teardown(pinDir); err != nil {
			t.Error(err)
		}
	})
	l.cfg = daemonConfig{
		Redirect: RedirectConfig{Cgroup: l.kubepods, PinDir: pinDir, Services: []Service{
			{VIP: ap(vip4), Target: ap(labTarget), Fallbacks: []netip.AddrPort{ap(labCore)}},
		}},
		Timeout: longTimeout, Name: "daemon", Serve: []netip.AddrPort{ap(labTarget), ap(vip4)},
	}
	l.daemon = startDaemon(t, l.Node, l.Node, l.cfg)
	return l
}

func labShapes(vip string) []shape {
	return []shape{
		{name: "UDP unconnected", network: "udp4", vip: vip},
		{name: "UDP connected", network: "udp4", vip: vip, connected: true},
		{name: "UDP mapped", network: "udp6", vip: vip, mapped: true},
		{name: "TCP", network: "tcp4", vip: vip, connected: true},
		{name: "TCP mapped", network: "tcp6", vip: vip, connected: true, mapped: true},
	}
}

// lossOf is the outcome of a lookup whose packets are lost.
const lossOf = "lost"

// outcome returns the name of the server that answers, or lossOf after wait.
func outcome(a *agent, s shape, wait time.Duration) string {
	got := a.lookup(s, wait)
	switch {
	case strings.Contains(got, syscall.EAGAIN.Error()), strings.Contains(got, syscall.EINPROGRESS.Error()):
		return lossOf
	}
	return strings.TrimSuffix(got, ":q")
}

// TestRoutingModes checks for each routing mode which server answers a pod. Without
// redirection, the pod queries the VIP, the node and the cluster IP. With
// redirection, it queries the VIP while the daemon runs and after it is killed.
func TestRoutingModes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		mode          lab.CNIMode
		plain         string // the answer at the VIP without redirection
		drops, leaves bool
	}{
		{"M0 legacy", lab.RouteLegacy, "daemon", false, false},
		{"M1 FIB", lab.RouteFIB, lossOf, true, false},
		{"M2 skip FIB", lab.RouteSkipFIB, lossOf, false, true},
		{"M3 FIB or stack", lab.RouteFIBOrStack, "daemon", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, tc.mode)
			l.expect(t, "plain VIP", l.plain, labShapes(vip4)[:1], tc.plain)
			l.expect(t, "plain VIP", l.plain, labShapes(vip4)[3:4], tc.plain)
			if dropped := l.Dropped(t, notFwded) > 0; dropped != tc.drops {
				t.Errorf("dropped with code %d: %t, want %t", notFwded, dropped, tc.drops)
			}
			if left := l.Leaked(t) > 0; left != tc.leaves {
				t.Errorf("queries left by the uplink: %t, want %t", left, tc.leaves)
			}
			l.expect(t, "node", l.plain, labShapes(labTarget), "daemon")
			l.expect(t, "ClusterIP", l.plain, labShapes(cluster4), "cluster")
			leaked := l.Leaked(t)
			l.expect(t, "redirected", l.agent, labShapes(vip4), "daemon")
			l.askAs(t, labShapes(vip4), "daemon")
			l.daemon.kill(t)
			l.expect(t, "redirected, daemon killed", l.agent, labShapes(vip4), "core")
			l.askAs(t, labShapes(vip4), "core")
			if n := l.Leaked(t); n != leaked {
				t.Errorf("%d packets to the VIP left by the uplink despite redirection", n-leaked)
			}
		})
	}
}

func (l *labNode) expect(t *testing.T, what string, a *agent, shapes []shape, want string) {
	t.Helper()
	wait := answerWait
	if want == lossOf {
		wait = lossWait
	}
	for _, s := range shapes {
		if got := outcome(a, s, wait); got != want {
			t.Errorf("%s, %s: %s, want %s", what, s.name, got, want)
		}
	}
}

// askAs also checks getpeername.
func (l *labNode) askAs(t *testing.T, shapes []shape, want string) {
	for _, s := range shapes {
		t.Run(s.name+" "+want, func(t *testing.T) { l.ask(t, s, want) })
	}
}
