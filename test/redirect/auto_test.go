package redirect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// startPod starts a process in the pod. Without one, mode auto has no network
// namespace to query from.
func (n *node) startPod(t *testing.T) {
	t.Helper()
	lab.Command{Netns: n.Pod, Cgroup: n.PodCgroup, Args: []string{"sleep", "1000"}}.Start(t)
}

// TestAuto: mode auto waits for a pod. It redirects only if the pod does not reach
// the VIP.
func TestAuto(t *testing.T) {
	for _, tc := range []struct {
		name  string
		mode  lab.CNIMode
		state string
	}{
		{"M0 legacy", lab.RouteLegacy, "needless"},
		{"M1 FIB", lab.RouteFIB, "on"},
		{"M2 skip FIB", lab.RouteSkipFIB, "on"},
		{"M3 FIB or stack", lab.RouteFIBOrStack, "needless"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tc.mode)
			d := n.start(t, redirecting(corefile, "auto", fallback))
			d.Err.WaitFor(t, 0, "there is no pod to check from")
			n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=waiting")
			n.startPod(t)
			n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state="+tc.state)
			n.expect(t, "decided", vip, ownAnswer)
			stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir)
			want := "redirect\tattached, alive"
			if tc.state != "on" {
				want = "redirect\tnot attached"
			}
			if status != 0 || !strings.Contains(stdout, want) {
				t.Errorf("nodens status: %d\n%swant %s", status, stdout, want)
			}
		})
	}
}

// TestAutoBesideSandboxes: mode auto also decides on a node whose first pods have no address
// in their network namespaces, as with gVisor.
func TestAutoBesideSandboxes(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	for i := range 6 {
		name := fmt.Sprintf("pod0000000%d-0000-0000-0000-000000000000", i)
		lab.Command{Netns: lab.NewNetns(t, name), Cgroup: lab.MakeCgroup(t, filepath.Join(n.Kubepods, name)), Args: []string{"sleep", "1000"}}.Start(t)
	}
	n.startPod(t)
	n.start(t, redirecting(corefile, "auto", fallback))
	n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=on")
}

// A successor in mode auto takes over its predecessor's redirection at once, even if
// there is no pod to query from.
func TestAutoTakesOver(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	n.start(t, redirecting(corefile, "on", fallback)).Kill()
	n.start(t, redirecting(corefile, "auto", fallback))
	n.expect(t, "taken over", vip, ownAnswer)
}

// TestOptOut: nodens does not redirect a pod whose name or namespace opts out, from
// when the pod appears in the kubelet's directory until it disappears from there.
func TestOptOut(t *testing.T) {
	const uid = "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01" // of lab's pod
	for _, optOut := range []string{"team-a", "team-b team-a/vpn-0"} {
		t.Run(optOut, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, lab.RouteFIB)
			logs := t.TempDir()
			n.start(t, redirecting(corefile, "on", fallback, "opt_out "+optOut), "-pod-logs", logs)
			n.expect(t, "no such pod", vip, ownAnswer)
			dir := filepath.Join(logs, "team-a_vpn-0_"+uid)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			n.waitForStatus(t, "opted out\t1 pods", true)
			if got := n.dig(t, vip); got != lost {
				t.Errorf("opted out: %s, want %s", got, lost)
			}
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			n.waitForStatus(t, "opted out", false)
			n.expect(t, "opted in", vip, ownAnswer)
		})
	}
}

// waitForStatus waits until the output of nodens status has text, or lacks it if
// want is false.
func (n *node) waitForStatus(t *testing.T, text string, want bool) {
	t.Helper()
	for deadline := time.Now().Add(lab.QueryTimeout); ; time.Sleep(20 * time.Millisecond) {
		stdout, _, _ := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir)
		if strings.Contains(stdout, text) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nodens status: want %q: %t, got\n%s", text, want, stdout)
		}
	}
}
