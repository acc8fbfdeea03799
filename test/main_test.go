// Package test drives the built nodens with real clients and servers in
// network namespaces.
package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// lookupEnv makes the test binary a client that looks up the name which the
// variable holds, with Go's own resolver and the resolv.conf that it finds.
const lookupEnv = "NODENS_TEST_LOOKUP"

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(lookupEnv); ok {
		os.Exit(goLookup(name))
	}
	os.Exit(lab.Main(m))
}

// goLookup prints the addresses of name, or "not found" or the error.
func goLookup(name string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := net.Resolver{PreferGo: true}
	addrs, err := r.LookupHost(ctx, name)
	var dnsErr *net.DNSError
	switch {
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		fmt.Println("not found")
		return 1
	case err != nil:
		fmt.Println(err)
		return 1
	}
	for _, a := range addrs {
		fmt.Println(a)
	}
	return 0
}

// The programs under test and the clients.
var (
	buildRace   = lab.RaceNodens()
	buildPlain  = lab.Nodens()
	buildStatic = lab.ReleaseNodens() // only so are privileges dropped
	buildGlibc  = lab.CProgram("testdata/lookup.c", "gcc")
	buildMusl   = lab.CProgram("testdata/lookup.c", "musl-gcc", "-static")
)

// Where things are in every lab.
const (
	localIP   = "169.254.20.10" // of the node, on lo
	localAddr = localIP + ":53"
	metrics   = "127.0.0.1:9253" // inside the node's namespace
	admin     = "prometheus 127.0.0.1:9253\n"
)

// cluster is a node with a pod beside it. Upstreams are added as needed.
type cluster struct {
	node, pod *lab.Netns
	upstreams int
}

// newCluster makes the two namespaces: the pod is 10.0.1.5 and fd00:1::5, the
// node 10.0.1.1, fd00:1::1 and localIP.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	lab.NeedTools(t, "ip", "unshare")
	c := &cluster{node: lab.NewNetns(t, "node"), pod: lab.NewNetns(t, "pod")}
	c.node.AddAddrs(t, "lo", localIP+"/32")
	c.node.Join(t, "pod0", []string{"10.0.1.1/24", "fd00:1::1/64"}, c.pod, "eth0", []string{"10.0.1.5/24", "fd00:1::5/64"})
	c.pod.AddRoute(t, "0.0.0.0/0", "10.0.1.1")
	return c
}

// addUpstream makes the namespace of the next upstream. The n-th, counted from
// 1, is 10.1.n.2.
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
