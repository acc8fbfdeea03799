package redirect

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestRoutingModes checks for each routing mode which server answers a pod. Without
// redirection, the pod queries the VIP, the node and a cluster IP. With redirection,
// it queries the VIP while nodens runs, is killed, and runs again.
func TestRoutingModes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		mode          lab.CNIMode
		plain         string // the answer at the VIP without redirection
		drops, leaves bool
	}{
		{"M0 legacy", lab.RouteLegacy, ownAnswer, false, false},
		{"M1 FIB", lab.RouteFIB, lost, true, false},
		{"M2 skip FIB", lab.RouteSkipFIB, lost, false, true},
		{"M3 FIB or stack", lab.RouteFIBOrStack, ownAnswer, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.mode)
			d := n.start(t, redirecting(corefile, "on", fallback))
			if got := n.digUnredirected(t, vip); got != tc.plain {
				t.Errorf("plain VIP: %s, want %s", got, tc.plain)
			}
			const notFwded = 4 // BPF_FIB_LKUP_RET_NOT_FWDED
			if dropped := n.Dropped(t, notFwded) > 0; dropped != tc.drops {
				t.Errorf("dropped with code %d: %t, want %t", notFwded, dropped, tc.drops)
			}
			if left := n.Leaked(t) > 0; left != tc.leaves {
				t.Errorf("queries left by the uplink: %t, want %t", left, tc.leaves)
			}
			n.expect(t, "node", target, ownAnswer)
			n.expect(t, "ClusterIP", lab.ClusterDNS, lab.ClusterDNS)
			leaked := n.Leaked(t)
			n.expect(t, "redirected", vip, ownAnswer)
			d.Kill()
			n.expect(t, "killed", vip, lab.Endpoint)
			n.start(t, redirecting(corefile, "on", fallback))
			n.expect(t, "restarted", vip, ownAnswer)
			if more := n.Leaked(t) - leaked; more > 0 {
				t.Errorf("%d packets to the VIP left by the uplink despite redirection", more)
			}
		})
	}
}

// The target answers local pods and the node. It refuses and counts queries that
// arrive on an uplink, over UDP and TCP.
func TestTargetIsNoOpenResolver(t *testing.T) {
	for name, option := range map[string]string{"default": "", "up0": "uplink up0", "mistyped": "uplink mistyped0"} {
		t.Run(name, func(t *testing.T) { testNoOpenResolver(t, option) })
	}
}

func testNoOpenResolver(t *testing.T, option string) {
	t.Parallel()
	n := newNode(t, lab.RouteLegacy)
	n.start(t, redirecting(corefile, "on", fallback, option))
	n.expect(t, "pod", target, ownAnswer)
	before, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
	for _, network := range []string{"+notcp", "+tcp"} {
		args := []string{"dig", "+short", "+tries=1", "+time=2", "-p", "20053", "@" + lab.NodeIP, "www.example.org", "A", network}
		if stdout, _, status := (lab.Command{Netns: n.Outside, Args: args}).Output(t); status == 0 && stdout != "" {
			t.Errorf("outside, %s: got %s", network, stdout)
		}
		before = n.waitForRefused(t, before)
	}
	n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=on")
}

// waitForRefused waits until nodens has refused more than before, and returns the
// count.
func (n *node) waitForRefused(t *testing.T, before float64) float64 {
	t.Helper()
	for deadline := time.Now().Add(lab.QueryTimeout); ; time.Sleep(20 * time.Millisecond) {
		after, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
		if after > before {
			return after
		}
		if time.Now().After(deadline) {
			t.Fatal("the query from outside is not counted")
		}
	}
}

// Redirection outlives nodens: pods use the fallback. nodens teardown removes all
// pins, and nothing is redirected any more. It may run twice. nodens status notices
// that redirection is missing.
func TestUninstall(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, redirecting(corefile, "on", fallback))
	n.expect(t, "redirected", vip, ownAnswer)
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM", status)
	}
	n.expect(t, "uninstalled", vip, lab.Endpoint)
	n.teardown(t)
	if _, err := os.Stat(n.pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after teardown %s exists: %v", n.pinDir, err)
	}
	if got := n.dig(t, vip); got != lost {
		t.Errorf("after teardown the VIP answers: %s", got)
	}
	n.teardown(t)
	stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir, "-conf", d.Conf)
	if status == 0 || !strings.Contains(stdout, "redirect\tmissing") {
		t.Errorf("nodens status after teardown: %d\n%s", status, stdout)
	}
}

// An operator tears redirection down under a running nodens, which does not restore it,
// not even at a reload, until it restarts.
func TestTeardownWhileRunning(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	text := redirecting(corefile, "on", fallback)
	d := n.start(t, text)
	n.expect(t, "redirected", vip, ownAnswer)
	if _, stderr, status := n.run(t, "teardown", "-force", "-localip", vip, "-redirect-pin-dir", n.pinDir); status != 0 {
		t.Fatalf("teardown -force: %d\n%s", status, stderr)
	}
	d.Err.WaitFor(t, 0, "an operator removed redirection")
	d.Signal(t, syscall.SIGHUP)
	n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=torn_down")
	if got := n.dig(t, vip); got != lost {
		t.Errorf("torn down, the VIP answers past the CNI: %s", got)
	}
	d.Signal(t, syscall.SIGTERM)
	d.Wait(t)
	n.start(t, text)
	n.expect(t, "restarted", vip, ownAnswer)
}

// Another process removes the pins and detaches a program. nodens restores both.
func TestRedirectionIsRestored(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, redirecting(corefile, "on", fallback))
	n.expect(t, "redirected", vip, ownAnswer)
	// nodens may pin again before the directory is empty.
	if err := os.RemoveAll(n.pinDir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		t.Fatal(err)
	}
	d.Err.WaitFor(t, 0, "redirection had changed, repaired")
	n.waitForStatus(t, "redirect\tattached, alive", true)
	n.expect(t, "restored", vip, ownAnswer)
	d.Kill()
	n.expect(t, "killed", vip, lab.Endpoint)
}

// A nodens without redirection removes its predecessor's, which would send pods to
// the fallback forever.
func TestTurnedOff(t *testing.T) {
	n := newNode(t, lab.RouteLegacy)
	n.start(t, redirecting(corefile, "on", fallback)).Kill()
	n.expect(t, "killed", vip, lab.Endpoint)
	n.start(t, corefile)
	waitUntilGone(t, n.pinDir)
	n.expect(t, "turned off", vip, ownAnswer)
}

// A reload turns redirection off and on, and moves its target.
func TestReload(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, redirecting(corefile, "on", fallback))
	n.expect(t, "on", vip, ownAnswer)
	reload := func(mode string, options ...string) {
		t.Helper()
		mark := d.Err.Mark()
		lab.ReplaceFile(t, d.Conf, redirecting(corefile, mode, options...))
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, "msg=reloaded")
	}
	reload("on", "target :20153", fallback)
	n.expect(t, "moved", vip, ownAnswer)
	if got := n.dig(t, target); got != lost {
		t.Errorf("the old target answers: %s", got)
	}
	reload("off")
	waitUntilGone(t, n.pinDir)
	if got := n.dig(t, vip); got != lost {
		t.Errorf("turned off, the VIP answers past the CNI: %s", got)
	}
	for range 2 { // the same failure is logged again after a success
		reload("on", fallback)
		n.expect(t, "on again", vip, ownAnswer)
		mark := d.Err.Mark()
		reload("on", fallback, "target 192.0.2.1")
		d.Err.WaitFor(t, mark, "sockets are not redirected")
	}
}

// A reload also turns off the redirection of an address that is not in -localip.
func TestServiceTurnedOff(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	elsewhere := strings.ReplaceAll(corefile, "bind "+vip, "bind 127.0.0.1")
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: binary(t), Netns: n.Node, Corefile: redirecting(elsewhere, "on", "service "+vip, fallback),
		Args: n.args()[2:], // without -localip
	})
	n.expect(t, "on", vip, ownAnswer)
	lab.ReplaceFile(t, d.Conf, redirecting(elsewhere, "off"))
	d.Signal(t, syscall.SIGHUP)
	waitUntilGone(t, n.pinDir)
}

// waitUntilGone waits until a path in a BPF file system, which has no events, does not
// exist.
func waitUntilGone(t *testing.T, path string) {
	t.Helper()
	deadline := time.After(lab.QueryTimeout)
	for {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s still exists", path)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
