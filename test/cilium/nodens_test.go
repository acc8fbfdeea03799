package cilium

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	metrics = "127.0.0.1:9253" // inside the node's namespace

	byNodens  = "192.0.2.53" // nodens's answer for who.example
	byCoreDNS = "192.0.2.1"  // CoreDNS's answer for every name of the zone example
	lost      = "lost"       // no answer
)

// daemon is nodens as the chart runs it: a supervisor and its worker, in a pod with the
// node's network.
type daemon struct {
	*lab.Daemon
	n *node
}

// start starts nodens with lines in its server block. Its upstream is the Service
// kube-dns, which Cilium translates.
func (n *node) start(t *testing.T, lines ...string) *daemon {
	t.Helper()
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), corefile(lines...))
	return n.startConf(t, conf, vip)
}

// redirecting are the lines for pods that query the local address or the ClusterIP.
func (n *node) redirecting(options ...string) []string {
	options = append([]string{"service " + vip + " " + clusterDNS, "fallback " + n.core.ip}, options...)
	return []string{"redirect on {\n" + strings.Join(options, "\n") + "\n}"}
}

func corefile(lines ...string) string {
	return `. {
    bind ` + vip + `
    errors
    cache 30
    hosts {
        ` + byNodens + ` who.example
        fallthrough
    }
    forward . ` + clusterDNS + `
    prometheus ` + metrics + `
    ` + strings.Join(lines, "\n    ") + `
}
`
}

func (n *node) startConf(t *testing.T, conf, localIPs string) *daemon {
	t.Helper()
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Conf: conf, Cgroup: n.own,
		Args: []string{"-localip", localIPs, "-node-ip", lab.NodeIP, "-kubepods", n.kubepods, "-pod-logs", n.podLogs, "-redirect-pin-dir", n.pinDir(),
			"-metrics-listen-address", "0", "-kubednscm", "", "-supervise", "-keep-privileges"},
	})
	return &daemon{d, n}
}

func (n *node) pinDir() string { return filepath.Join(lab.BPFFS, "nodens") }

// run runs a subcommand of nodens on the node.
func (n *node) run(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, _ := lab.Command{Netns: n.Netns, Cgroup: n.own, Args: append([]string{nodens.Path(t)}, args...)}.Output(t)
	return stdout + stderr
}

// stop ends nodens and removes what it leaves.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("nodens ended with status %d after SIGTERM", status)
	}
	d.n.run(t, "teardown", "-force", "-localip", vip, "-redirect-pin-dir", d.n.pinDir())
}

// ask looks up a name from the pod once and returns the address, or lost.
func (p *pod) ask(t *testing.T, server, name string) string {
	return p.askOver(t, "+notcp", server, name)
}

func (p *pod) askOver(t *testing.T, network, server, name string) string {
	t.Helper()
	stdout, _, status := lab.Command{Netns: p.Netns, Cgroup: p.cgroup,
		Args: []string{"dig", "+short", "+tries=1", "+time=3", network, "@" + server, name, "A"}}.Output(t)
	if status != 0 || strings.TrimSpace(stdout) == "" {
		return lost
	}
	return strings.TrimSpace(stdout)
}

// expect waits for an answer: Cilium applies policies later, and a busy machine is slow.
func (p *pod) expect(t *testing.T, when, server, name, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(timeout); got != want && time.Now().Before(deadline); {
		got = p.ask(t, server, name)
	}
	if got != want {
		t.Errorf("%s, %s: %s at %s: %s, want %s", when, p.name, name, server, got, want)
	}
}

// never fails if any of a few lookups is answered.
func (p *pod) never(t *testing.T, when, server, name string) {
	t.Helper()
	for range 3 {
		if got := p.ask(t, server, name); got != lost {
			t.Errorf("%s, %s: %s at %s: %s, want no answer", when, p.name, name, server, got)
		}
	}
}

// worker returns the PID of the supervisor's child.
func (d *daemon) worker(t *testing.T) (pid int) {
	t.Helper()
	parent := fmt.Sprintf("\nPPid:\t%d\n", d.PID())
	waitFor(t, "the worker", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/status")
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err == nil && bytes.Contains(text, []byte(parent)) && !bytes.Contains(text, []byte("\nState:\tZ")) {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(f)))
			}
		}
		return pid > 0
	})
	return pid
}

// kernelAnswers returns how many queries the kernel has answered.
func (n *node) kernelAnswers(t *testing.T) float64 {
	t.Helper()
	sum, _ := n.Scrape(t, metrics).Sum("nodens_kernel_answers_total")
	return sum
}

// warm sends queries from the pod until the kernel answers one. It reports whether it did.
func (p *pod) warm(t *testing.T, n *node, server, name string) bool {
	t.Helper()
	before := n.kernelAnswers(t)
	for late := time.Now().Add(timeout); time.Now().Before(late); {
		for range 5 {
			p.ask(t, server, name)
		}
		if n.kernelAnswers(t) > before {
			return true
		}
	}
	return false
}
