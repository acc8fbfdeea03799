package redirect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The table of the routing modes, end to end: what a pod reaches at the VIP
// itself, at the node and at a ClusterIP, and at the VIP with redirection, with
// nodens up, killed, and up again.
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
			d := n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint)
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
			n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint)
			n.expect(t, "restarted", vip, ownAnswer)
			if more := n.Leaked(t) - leaked; more > 0 {
				t.Errorf("%d packets to the VIP left by the uplink in spite of redirection", more)
			}
		})
	}
}

// The target answers local pods and the node, and nobody who comes in by an
// uplink: neither over UDP nor over TCP, and what came is counted.
func TestTargetIsNoOpenResolver(t *testing.T) {
	for _, uplink := range [][]string{nil, {"-redirect-uplink", "up0"}, {"-redirect-uplink", "mistyped0"}} {
		t.Run(fmt.Sprint(uplink), func(t *testing.T) { testNoOpenResolver(t, uplink) })
	}
}

func testNoOpenResolver(t *testing.T, flags []string) {
	t.Parallel()
	n := newNode(t, lab.RouteLegacy)
	n.start(t, corefile, append([]string{"-redirect", "on", "-redirect-fallback", lab.Endpoint}, flags...)...)
	n.expect(t, "pod", target, ownAnswer)
	before, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
	for _, network := range []string{"+notcp", "+tcp"} {
		args := []string{"dig", "+short", "+tries=1", "+time=2", "-p", "20053", "@" + lab.NodeIP, "www.example.org", "A", network}
		if stdout, _, status := (lab.Command{Netns: n.Outside, Args: args}).Output(t); status == 0 && stdout != "" {
			t.Errorf("outside, %s: got %s", network, stdout)
		}
		before = n.awaitRefused(t, before)
	}
	n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=on")
}

// awaitRefused waits until more strangers than before have been refused, and
// returns how many.
func (n *node) awaitRefused(t *testing.T, before float64) float64 {
	t.Helper()
	for late := time.Now().Add(lab.Patience); ; time.Sleep(20 * time.Millisecond) {
		after, _ := n.Node.Scrape(t, metrics).Sum("nodens_redirect_refused_total")
		if after > before {
			return after
		}
		if time.Now().After(late) {
			t.Fatal("who came from outside is not counted")
		}
	}
}

// What is redirected outlives nodens, however it ends: pods go on by the
// fallback. The teardown command, as often as one likes, leaves nothing pinned,
// and the pod's sockets alone.
func TestUninstall(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint)
	n.expect(t, "redirected", vip, ownAnswer)
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM", status)
	}
	n.expect(t, "uninstalled", vip, lab.Endpoint)
	n.teardown(t)
	if _, err := os.Stat(n.pinDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after teardown %s is there: %v", n.pinDir, err)
	}
	if got := n.dig(t, vip); got != lost {
		t.Errorf("after teardown the VIP answers: %s", got)
	}
	n.teardown(t)
}

// A nodens without redirection removes what a predecessor has left, which would
// send pods to the fallback for ever.
func TestTurnedOff(t *testing.T) {
	n := newNode(t, lab.RouteLegacy)
	n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint).Kill()
	n.expect(t, "killed", vip, lab.Endpoint)
	n.start(t, corefile)
	awaitGone(t, n.pinDir)
	n.expect(t, "turned off", vip, ownAnswer)
}

// A reload turns redirection off and on, and moves its target.
func TestReload(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, corefile+"redirect.invalid {\n    sample\n    redirect on {\n        fallback "+lab.Endpoint+"\n    }\n}\n")
	n.expect(t, "on", vip, ownAnswer)
	reload := func(redirect string) {
		t.Helper()
		mark := d.Err.Mark()
		lab.ReplaceFile(t, d.Conf, corefile+"redirect.invalid {\n    sample\n    "+redirect+"\n}\n")
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, "msg=reloaded")
	}
	reload("redirect on {\n target :20153\n fallback " + lab.Endpoint + "\n}")
	n.expect(t, "moved", vip, ownAnswer)
	if got := n.dig(t, target); got != lost {
		t.Errorf("the old target answers: %s", got)
	}
	reload("redirect off")
	awaitGone(t, n.pinDir)
	if got := n.dig(t, vip); got != lost {
		t.Errorf("turned off, the VIP answers past the CNI: %s", got)
	}
	for range 2 { // the same failure is told again
		reload("redirect on {\n fallback " + lab.Endpoint + "\n}")
		n.expect(t, "on again", vip, ownAnswer)
		mark := d.Err.Mark()
		reload("redirect on {\n fallback " + lab.Endpoint + "\n kubepods /sys/fs/cgroup/none\n}")
		d.Err.WaitFor(t, mark, "sockets are not redirected")
	}
}

// A reload also turns off what does not come of -localip.
func TestServiceTurnedOff(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	elsewhere := strings.ReplaceAll(corefile, "bind "+vip, "bind 127.0.0.1")
	mode := func(s string) string {
		return elsewhere + "redirect.invalid {\n    sample\n    redirect " + s + "\n}\n"
	}
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: binary(t), Netns: n.Node, Corefile: mode("on {\n service " + vip + "\n fallback " + lab.Endpoint + "\n}"),
		Args: n.args()[2:], // without -localip
	})
	n.expect(t, "on", vip, ownAnswer)
	lab.ReplaceFile(t, d.Conf, mode("off"))
	d.Signal(t, syscall.SIGHUP)
	awaitGone(t, n.pinDir)
}

// awaitGone waits until a path in a BPF file system, which gives no events, is
// gone.
func awaitGone(t *testing.T, path string) {
	t.Helper()
	late := time.After(lab.Patience)
	for {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-late:
			t.Fatalf("%s is still there", path)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
