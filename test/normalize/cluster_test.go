package normalize

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Addresses of every cluster.
const (
	localIP = "169.254.20.10" // of nodens, for the pod
	otherIP = "169.254.20.11" // of nodens too
	metrics = "127.0.0.1:9253"
	admin   = "prometheus 127.0.0.1:9253\n"
)

// cluster is a node with a pod, and servers that both of them reach.
type cluster struct {
	node, pod *lab.Netns
	servers   int
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	lab.NeedTools(t, "ip", "unshare")
	n := lab.NewNetns(t, "node")
	return &cluster{node: n, pod: n.AddPod(t, "pod")}
}

// place is the namespace of a DNS server and its addresses for the node and for
// the pod.
type place struct {
	netns           *lab.Netns
	forNode, forPod string
}

// addServer makes the place of the next server. The n-th, counted from 1, is
// 10.1.n.2 for the node and 10.2.n.2 for the pod.
func (c *cluster) addServer(t testing.TB, name string) place {
	t.Helper()
	c.servers++
	i := c.servers
	p := place{lab.NewNetns(t, name), fmt.Sprintf("10.1.%d.2", i), fmt.Sprintf("10.2.%d.2", i)}
	link := fmt.Sprintf("up%d", i)
	c.node.Join(t, link, []string{fmt.Sprintf("10.1.%d.1/24", i)}, p.netns, "node", []string{p.forNode + "/24"})
	c.pod.Join(t, link, []string{fmt.Sprintf("10.2.%d.1/24", i)}, p.netns, "pod", []string{p.forPod + "/24"})
	return p
}

// start runs nodens in node-local mode: it adds its addresses to the node.
// resolvConf is the node's.
func (c *cluster) start(t testing.TB, build *lab.Program, resolvConf, corefile string, args ...string) *lab.Daemon {
	t.Helper()
	return lab.StartDaemon(t, lab.DaemonOptions{
		Binary: build.Path(t), Netns: c.node, Corefile: corefile, Args: append([]string{"-localip", localIP + "," + otherIP}, args...),
		Binds: map[string]string{
			"/etc/resolv.conf": lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), resolvConf),
		},
	})
}
