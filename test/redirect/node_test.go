package redirect

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip     = "169.254.20.10"
	target  = lab.NodeIP + ":20053"
	metrics = "127.0.0.1:9253" // inside the node's namespace

	ownAnswer = "192.0.2.1" // nodens's own answer
	lost      = "lost"      // no answer

	fallback = "fallback " + lab.Endpoint // an option of redirect
)

const corefile = `example.org {
    bind ` + vip + `
    hosts {
        ` + ownAnswer + ` www.example.org
    }
}
. {
    bind ` + vip + `
    forward . ` + lab.ClusterDNS + `
    prometheus ` + metrics + `
}
`

// redirecting returns a Corefile with a redirect directive added to its last block.
func redirecting(corefile, mode string, options ...string) string {
	lines := append([]string{"    redirect " + mode + " {", "heartbeat 500ms"}, options...)
	at := strings.LastIndex(corefile, "}")
	return corefile[:at] + strings.Join(lines, "\n        ") + "\n    }\n" + corefile[at:]
}

// node is a node of the lab. nodens runs on it.
type node struct {
	*lab.CNINode
	pinDir string
}

func newNode(t *testing.T, mode lab.CNIMode) *node {
	t.Helper()
	lab.NeedTools(t, "dig")
	n := &node{CNINode: lab.NewCNINode(t, mode, vip), pinDir: filepath.Join(lab.BPFFS, strings.NewReplacer("/", "_", "[", "", "]", "").Replace(t.Name()))}
	t.Cleanup(func() { n.teardown(t) })
	return n
}

func binary(t *testing.T) string {
	t.Helper()
	return nodens.Path(t)
}

// args returns the flags of a daemon on this node. It has no supervisor: after a
// kill it stays dead.
func (n *node) args(more ...string) []string {
	return append([]string{"-localip", vip, "-kubepods", n.Kubepods, "-redirect-pin-dir", n.pinDir,
		"-metrics-listen-address", "0", "-kubednscm", "", "-supervise=false"}, more...)
}

// start starts nodens with a Corefile.
func (n *node) start(t *testing.T, corefile string, more ...string) *lab.Daemon {
	t.Helper()
	return lab.StartDaemon(t, lab.DaemonOptions{Binary: binary(t), Netns: n.Node, Corefile: corefile, Args: n.args(more...)})
}

// run runs a subcommand of nodens on the node.
func (n *node) run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return lab.Command{Netns: n.Node, Args: append([]string{binary(t)}, args...)}.Output(t)
}

// teardown runs nodens teardown, which must succeed even if it ran before.
func (n *node) teardown(t *testing.T) {
	t.Helper()
	_, stderr, status := n.run(t, "teardown", "-localip", vip, "-redirect-pin-dir", n.pinDir)
	if status != 0 {
		t.Errorf("nodens teardown: status %d\n%s", status, stderr)
	}
}

// dig queries from the pod and returns the address in the answer, or lost.
func (n *node) dig(t *testing.T, server string, options ...string) string {
	t.Helper()
	return n.digFrom(t, n.PodCgroup, server, options...)
}

// digUnredirected queries from the pod's network namespace, outside its cgroup.
func (n *node) digUnredirected(t *testing.T, server string, options ...string) string {
	t.Helper()
	return n.digFrom(t, "", server, options...)
}

func (n *node) digFrom(t *testing.T, cgroup, server string, options ...string) string {
	t.Helper()
	host, port, ok := strings.Cut(server, ":")
	if !ok {
		port = "53"
	}
	args := append([]string{"dig", "+short", "+tries=1", "+time=2", "-p", port, "@" + host, "www.example.org", "A"}, options...)
	stdout, _, status := lab.Command{Netns: n.Pod, Cgroup: cgroup, Args: args}.Output(t)
	if status != 0 {
		return lost
	}
	return strings.TrimSpace(stdout)
}

// expect checks the answer over UDP and TCP. On a busy machine a late heartbeat
// sends pods to the fallback, so expect retries while the fallback answers. It
// accepts an answer that takes seconds.
func (n *node) expect(t *testing.T, when, server, want string) {
	t.Helper()
	for _, network := range []string{"+notcp", "+tcp"} {
		deadline := time.Now().Add(lab.QueryTimeout)
		got := n.dig(t, server, network, "+time=15")
		for got == lab.Endpoint && want != got && time.Now().Before(deadline) {
			got = n.dig(t, server, network, "+time=15")
		}
		if got != want {
			t.Errorf("%s, %s: %s, want %s", when, network, got, want)
		}
	}
}
