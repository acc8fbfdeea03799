package redirect

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// What keeps sockets from being redirected is told, counted, and does not keep
// nodens from serving by address.
func TestCannotRedirect(t *testing.T) {
	notBPF := t.TempDir()
	for _, tc := range []struct {
		name string
		args func(n *node) []string
		want string
	}{
		{"no BPF file system", func(*node) []string { return []string{"-redirect-pin-dir", notBPF} },
			"not in a BPF file system: mount one"},
		{"no cgroup", func(n *node) []string { return []string{"-kubepods", filepath.Join(n.Kubepods, "none")} },
			"not a cgroup v2 directory below the root"},
		{"the root's cgroup", func(n *node) []string { return []string{"-kubepods", filepath.Dir(filepath.Dir(n.Kubepods))} },
			"is the root"},
		{"a target that is not the node's", func(*node) []string { return []string{"-redirect-target", "192.0.2.1"} },
			"cannot assign requested address"},
		{"a target that a server block is bound to", func(*node) []string {
			return []string{"-redirect-target", vip + ":53", "-redirect-service", "10.96.0.99"}
		},
			"a server block is bound to it"},
		{"no address of that family", func(*node) []string { return []string{"-redirect-service", "fd00:53::10"} },
			"the node's address is not known, set -node-ip"},
		{"opt-out without the kubelet's directory", func(*node) []string {
			return []string{"-redirect-opt-out", "team-a", "-pod-logs", filepath.Join(notBPF, "none")}
		}, "find pods that opt out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, lab.RouteLegacy)
			d := n.start(t, corefile, append([]string{"-redirect", "on", "-redirect-fallback", lab.Endpoint}, tc.args(n)...)...)
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

// A VIP of an address family that the node has not does not keep the other one from
// being redirected.
func TestOneFamily(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint, "-redirect-service", "fd00:53::10,"+vip)
	d.Err.WaitFor(t, 0, `a service is not redirected.*\[fd00:53::10\]:53`)
	n.expect(t, "the other family", vip, ownAnswer)
}

// TestSurge: two daemons at once, as in an upgrade: the new one adopts what is
// redirected, and the end of the old one does not send pods to the fallback.
func TestSurge(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	args := []string{"-redirect", "on", "-redirect-fallback", lab.Endpoint}
	first := n.start(t, corefile, args...)
	n.expect(t, "first", vip, ownAnswer)
	second := n.start(t, strings.ReplaceAll(corefile, ownAnswer, "192.0.2.2"), args...)
	first.Signal(t, syscall.SIGTERM)
	if status := first.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM", status)
	}
	n.expect(t, "second", vip, "192.0.2.2")
	stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir, "-redirect", "on")
	if !strings.Contains(stdout, "redirect\tattached, alive") {
		t.Errorf("nodens status: %d\n%s", status, stdout)
	}
	second.Kill()
	n.expect(t, "both gone", vip, lab.Endpoint)
	if stdout, _, status := n.run(t, "status", "-localip", vip, "-redirect-pin-dir", n.pinDir); status == 0 || !strings.Contains(stdout, "no daemon: pods ask the fallback") {
		t.Errorf("nodens status after both are gone: %d\n%s", status, stdout)
	}
}

// A daemon that hangs is told from one that is well by its heartbeat: pods ask the
// fallback, and the daemon again when it goes on.
func TestHung(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	d := n.start(t, corefile, "-redirect", "on", "-redirect-fallback", lab.Endpoint)
	n.expect(t, "well", vip, ownAnswer)
	d.Signal(t, syscall.SIGSTOP)
	n.awaitStatus(t, "hung: pods ask the fallback", true)
	n.expect(t, "hung", vip, lab.Endpoint)
	d.Signal(t, syscall.SIGCONT)
	n.awaitStatus(t, "attached, alive", true)
	n.expect(t, "well again", vip, ownAnswer)
}

// TestCapabilities: what docs/cilium.md names is enough, and less is told.
func TestCapabilities(t *testing.T) {
	lab.NeedTools(t, "setpriv")
	path := release.Path(t)
	const serving = "+net_admin,+net_bind_service"
	for _, tc := range []struct {
		name, caps, mode string
		cni              lab.CNIMode
		state            string
		want             string // what a pod gets at the VIP
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
			wrapper := filepath.Join(t.TempDir(), "nodens")
			script := "#!/bin/sh\nexec setpriv --bounding-set=-all," + tc.caps + " -- " + path + ` "$@"` + "\n"
			if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			d := lab.StartDaemon(t, lab.DaemonOptions{
				Binary: wrapper, Netns: n.Node, Corefile: corefile, Args: n.args("-redirect", tc.mode, "-redirect-fallback", lab.Endpoint),
			})
			n.Node.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state="+tc.state)
			d.Err.WaitFor(t, 0, "privileges dropped")
			n.expect(t, tc.state, vip, tc.want)
		})
	}
}

// What was missing and is there now lets a reload redirect, of the same Corefile.
func TestCured(t *testing.T) {
	const late = "10.0.0.9" // the node's, by and by
	n := newNode(t, lab.RouteFIB)
	pods := filepath.Join(filepath.Dir(n.Kubepods), "later")
	for _, tc := range []struct {
		name string
		args []string
		cure func()
	}{
		{"an address", []string{"-redirect-target", late}, func() { n.Node.AddAddrs(t, "up0", late+"/24") }},
		{"a cgroup", []string{"-kubepods", pods}, func() { lab.MakeCgroup(t, pods) }},
	} {
		d := n.start(t, corefile, append([]string{"-redirect", "on", "-redirect-fallback", lab.Endpoint}, tc.args...)...)
		d.Err.WaitFor(t, 0, "sockets are not redirected; nodens serves by address")
		tc.cure()
		mark := d.Err.Mark()
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, "sockets are redirected")
		d.Signal(t, syscall.SIGTERM)
		d.Wait(t)
	}
}
