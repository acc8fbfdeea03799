package redirect

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// If nodens cannot redirect sockets, it logs and counts the reason and serves by
// address.
func TestCannotRedirect(t *testing.T) {
	notBPF := t.TempDir()
	for _, tc := range []struct {
		name   string
		option string
		args   func(n *node) []string // may be nil
		want   string
	}{
		{"no BPF file system", "", func(*node) []string { return []string{"-redirect-pin-dir", notBPF} },
			"not in a BPF file system: mount one"},
		{"no cgroup", "", func(n *node) []string { return []string{"-kubepods", filepath.Join(n.Kubepods, "none")} },
			"not a cgroup v2 directory below the root"},
		{"the root's cgroup", "", func(n *node) []string { return []string{"-kubepods", filepath.Dir(filepath.Dir(n.Kubepods))} },
			"is the root"},
		{"a target that is not the node's", "target 192.0.2.1", nil,
			"cannot assign requested address"},
		{"a target that a server block is bound to", "target " + vip + ":53\nservice 10.96.0.99", nil,
			"a server block is bound to it"},
		{"no address of that family", "service fd00:53::10", nil,
			"the node's address is not known, set -node-ip"},
		{"opt-out without the kubelet's directory", "opt_out team-a", func(*node) []string {
			return []string{"-pod-logs", filepath.Join(notBPF, "none")}
		}, "find pods that opt out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, lab.RouteLegacy)
			var args []string
			if tc.args != nil {
				args = tc.args(n)
			}
			d := n.start(t, redirecting(corefile, "on", fallback, tc.option), args...)
			line := d.Err.WaitFor(t, 0, "sockets are not redirected; nodens serves by address")
			if !strings.Contains(line, tc.want) {
				t.Errorf("log: %s\nwant %s", line, tc.want)
			}
			n.expect(t, "by address", vip, ownAnswer)
			m := n.Node.Scrape(t, metrics)
			if failed, _ := m.Sum("nodens_redirect_state", "state=failed"); failed != 1 {
				t.Error("the state is not failed")
			}
			if errs, _ := m.Sum("nodens_redirect_errors_total"); errs < 1 {
				t.Error("not counted")
			}
		})
	}
}

// If the node has no address of one VIP's family, the other VIP is redirected.
func TestOneFamily(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, redirecting(corefile, "on", fallback, "service fd00:53::10 "+vip))
	d.Err.WaitFor(t, 0, `a service is not redirected.*\[fd00:53::10\]:53`)
	n.expect(t, "the other family", vip, ownAnswer)
}

// TestSurge runs two daemons at once, as an upgrade does: the new one adopts the
// redirection, and the end of the old one does not send pods to the fallback.
func TestSurge(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	text := redirecting(corefile, "on", fallback)
	first := n.start(t, text)
	n.expect(t, "first", vip, ownAnswer)
	second := n.start(t, strings.ReplaceAll(text, ownAnswer, "192.0.2.2"))
	first.Signal(t, syscall.SIGTERM)
	if status := first.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM", status)
	}
	n.expect(t, "second", vip, "192.0.2.2")
	stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir, "-conf", second.Conf)
	if !strings.Contains(stdout, "redirect\tattached, alive") {
		t.Errorf("nodens status: %d\n%s", status, stdout)
	}
	second.Kill()
	n.expect(t, "both killed", vip, lab.Endpoint)
	if stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir); status == 0 || !strings.Contains(stdout, "no daemon: pods use the fallback") {
		t.Errorf("nodens status after both are killed: %d\n%s", status, stdout)
	}
}

// A hung daemon sends no heartbeat: pods use the fallback, and the daemon again
// when it continues.
func TestHung(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, redirecting(corefile, "on", fallback))
	n.expect(t, "healthy", vip, ownAnswer)
	d.Signal(t, syscall.SIGSTOP)
	n.waitForStatus(t, "hung: pods use the fallback", true)
	n.expect(t, "hung", vip, lab.Endpoint)
	d.Signal(t, syscall.SIGCONT)
	n.waitForStatus(t, "attached, alive", true)
	n.expect(t, "healthy again", vip, ownAnswer)
}

// TestCapabilities: the capabilities in docs/cilium.md are enough. With fewer,
// nodens reports a failure.
func TestCapabilities(t *testing.T) {
	lab.NeedTools(t, "setpriv")
	path := release.Path(t)
	const serving = "+net_admin,+net_bind_service"
	for _, tc := range []struct {
		name, caps, mode string
		cni              lab.CNIMode
		state            string
		want             string // the answer that a pod gets from the VIP
	}{
		{"on", serving + ",+bpf,+perfmon", "on", lab.RouteFIB, "on", ownAnswer},
		{"auto", serving + ",+bpf,+perfmon,+sys_admin,+sys_ptrace", "auto", lab.RouteFIB, "on", ownAnswer},
		{"on without BPF", serving, "on", lab.RouteLegacy, "failed", ownAnswer},
		{"auto that may not enter pods", serving + ",+bpf,+perfmon", "auto", lab.RouteLegacy, "failed", ownAnswer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tc.cni)
			n.startPod(t)
			wrapper := lab.WriteScript(t, "exec setpriv --bounding-set=-all,"+tc.caps+" -- "+path+` "$@"`)
			d := lab.StartDaemon(t, lab.DaemonOptions{
				Binary: wrapper, Netns: n.Node, Corefile: redirecting(corefile, tc.mode, fallback), Args: n.args(),
			})
			n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state="+tc.state)
			d.Err.WaitFor(t, 0, "privileges dropped")
			n.expect(t, tc.state, vip, tc.want)
		})
	}
}

// Once the missing part exists, a reload of the same Corefile redirects.
func TestFailureGoesAway(t *testing.T) {
	const later = "10.0.0.9" // added to the node during the test
	n := newNode(t, lab.RouteFIB)
	pods := filepath.Join(filepath.Dir(n.Kubepods), "later")
	for _, tc := range []struct {
		option string
		args   []string
		repair func()
	}{
		{"target " + later, nil, func() { n.Node.AddAddrs(t, "up0", later+"/24") }},
		{"", []string{"-kubepods", pods}, func() { lab.MakeCgroup(t, pods) }},
	} {
		d := n.start(t, redirecting(corefile, "on", fallback, tc.option), tc.args...)
		d.Err.WaitFor(t, 0, "sockets are not redirected; nodens serves by address")
		tc.repair()
		mark := d.Err.Mark()
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, "sockets are redirected")
		d.Signal(t, syscall.SIGTERM)
		d.Wait(t)
	}
}
