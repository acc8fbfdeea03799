// Package test drives the built nodens with real clients and servers in
// network namespaces.
package test

import (
	"fmt"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	lab.Parallel(4)
	os.Exit(lab.Main(m))
}

// The programs under test and the stubs.
var (
	buildRace   = lab.RaceNodens()
	buildPlain  = lab.Nodens()
	buildStatic = lab.ReleaseNodens() // the only build that drops privileges
	buildGlibc  = lab.Glibc("lookup")
	buildMusl   = lab.Musl("lookup")
)

// Addresses of every cluster.
const (
	localIP   = "169.254.20.10" // of the node, on lo
	localAddr = localIP + ":53"
	metrics   = "127.0.0.1:9253" // inside the node's namespace
	admin     = "prometheus 127.0.0.1:9253\n"
)

// cluster is a node with a pod. Tests add upstreams.
type cluster struct {
	node, pod *lab.Netns
	upstreams int
}

// newCluster makes the two namespaces. The pod is 10.0.1.5 and fd00:1::5. The
// node is 10.0.1.1, fd00:1::1 and localIP.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	lab.NeedTools(t, "ip", "unshare")
	c := &cluster{node: lab.NewNetns(t, "node", localIP+"/32")}
	c.pod = c.node.AddPod(t, "pod")
	c.node.AddAddrs(t, "pod0", "fd00:1::1/64")
	c.pod.AddAddrs(t, "eth0", "fd00:1::5/64")
	return c
}

// addUpstream makes the namespace of the next upstream. The n-th, counted from 1,
// is 10.1.n.2.
func (c *cluster) addUpstream(t *testing.T) (n *lab.Netns, ip string) {
	t.Helper()
	c.upstreams++
	i := c.upstreams
	n = lab.NewNetns(t, fmt.Sprintf("upstream%d", i))
	ip = fmt.Sprintf("10.1.%d.2", i)
	c.node.Join(t, fmt.Sprintf("up%d", i), []string{fmt.Sprintf("10.1.%d.1/24", i)}, n, "eth0", []string{ip + "/24"})
	return n, ip
}

// start runs the race-checked nodens on the node.
func (c *cluster) start(t *testing.T, corefile string, args ...string) *lab.Daemon {
	t.Helper()
	return lab.StartDaemon(t, lab.DaemonOptions{
		Binary: buildRace.Path(t), Netns: c.node, Corefile: corefile, Args: args,
	})
}
