package statuspage

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	listen     = "169.254.20.10"
	statusAddr = "127.0.0.1:9354" // in the node's namespace
)

const corefile = `cluster.local:53 {
    bind 169.254.20.10
    errors
    cache 30
    forward . 10.96.0.10
    prometheus 127.0.0.1:9253
}
.:53 {
    bind 169.254.20.10
    errors
    cache 30
    forward . 10.0.0.2 10.0.0.3
    prometheus 127.0.0.1:9253
}
`

// node is a node with nodens, its upstreams and five pods, which are addresses on lo.
type node struct {
	*lab.Netns
	status  string            // address of the status page
	binds   map[string]string // see lab.Command
	daemon  *lab.Daemon
	args    []string
	address string // for the test, outside the namespace
}

// newNode makes the node, and an address outside of its namespace that leads to the
// status page.
func newNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := &node{args: args, status: statusAddr}
	n.Netns = lab.NewNetns(t, "node", listen+"/32", "10.96.0.10/32", "10.0.0.2/32", "10.0.0.3/32")
	n.binds = lab.Etc(t, "nameserver "+listen+"\n")
	n.binds["/var/lib"] = cniResults(t)
	lab.StartUpstream(t, n.Netns, "10.96.0.10:53", answerCluster)
	lab.StartUpstream(t, n.Netns, "10.0.0.2:53", answerWorld)
	lab.StartUpstream(t, n.Netns, "10.0.0.3:53", answerWorld)
	n.start(t)
	n.address = n.Relay(t, statusAddr)
	return n
}

// pods are the clients. The CNI has results for all but the last.
var pods = []struct{ ip, name string }{
	{"10.244.1.17", "api-6b8c9d7f5b-lq9wz"}, {"10.244.1.24", "checkout-7c9d8f6b5-x2klp"}, {"10.244.1.31", "consumer-5f7dd9c8d4-8hs2m"},
	{"10.244.1.38", "frontend-84d5b6c7f9-tq4nd"}, {"10.244.1.45", ""},
}

// cniResults writes what libcni keeps below /var/lib about the pods' networks.
func cniResults(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	results := filepath.Join(dir, "cni/results")
	if err := os.MkdirAll(results, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods[:len(pods)-1] {
		lab.WriteFile(t, filepath.Join(results, "bridge-"+p.name+"-eth0"), fmt.Sprintf(
			`{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME",%q]],"result":{"ips":[{"address":"%s/24"}]}}`, p.name, p.ip))
	}
	return dir
}

// start starts nodens.
func (n *node) start(t *testing.T) {
	t.Helper()
	binary := nodens
	if *screenshots != "" {
		binary = plain
	}
	n.daemon = lab.StartDaemon(t, lab.DaemonOptions{
		Binary: binary.Path(t), Netns: n.Netns, Conf: lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), corefile),
		Args: append([]string{"-status-address", n.status}, n.args...), Env: []string{"NODE_NAME=worker-1"}, Binds: n.binds,
	})
}

const (
	clusterDomain = ".cluster.local."
	markup        = "<b>bold</b>.example.com." // the page must not interpret it
)

// Services that exist, from the most frequent, and names of others.
var (
	services = []string{"api.payments.svc", "redis-master.shop.svc", "otel-collector.observability.svc", "auth.identity.svc", "checkout.shop.svc", "postgres-rw.shop.svc", "kafka-0.kafka-headless.streaming.svc"}
	external = []string{"storage.example.com.", "api.example.net.", "registry.example.org.", "mail.example.com."}
)

func answerCluster(q *dns.Msg) *dns.Msg {
	name := strings.TrimSuffix(q.Question[0].Name, clusterDomain)
	for i, s := range services {
		switch {
		case name == s && q.Question[0].Qtype == dns.TypeA:
			return lab.Reply(q, fmt.Sprintf("%s 5 IN A 10.96.1.%d", q.Question[0].Name, i+1))
		case name == s || strings.HasSuffix(s, "."+name):
			return lab.Denial(q, dns.RcodeSuccess, "cluster.local.")
		}
	}
	return lab.Denial(q, dns.RcodeNameError, "cluster.local.")
}

// answerWorld answers after some milliseconds, as upstreams do.
func answerWorld(q *dns.Msg) *dns.Msg {
	time.Sleep(time.Duration(len(q.Question[0].Name)%16+2) * time.Millisecond)
	return lab.Reply(q, q.Question[0].Name+" 5 IN A 192.0.2.1")
}

// load sends queries from five pods, until the test ends.
func (n *node) load(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	var sent atomic.Int64
	for _, p := range pods {
		n.AddAddrs(t, "lo", p.ip+"/32")
		var c net.Conn
		n.Inside(t, func() (err error) {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(p.ip)}}
			c, err = d.DialContext(ctx, "udp", listen+":53")
			return err
		})
		running.Go(func() { defer c.Close(); ask(ctx, c, &sent) })
	}
}

// ask sends a query every few milliseconds. The test tolerates lost queries.
func ask(ctx context.Context, c net.Conn, sent *atomic.Int64) {
	pick := rand.New(rand.NewSource(int64(c.LocalAddr().(*net.UDPAddr).IP[3])))
	common := rand.NewZipf(pick, 1.3, 1, uint64(len(services)+len(external)-1))
	pace := time.NewTicker(time.Duration(4+pick.Intn(16)) * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		at := int(common.Uint64())
		name := ""
		switch {
		case sent.Add(1)%25 == 0: // an external name with a search domain appended
			name = strings.TrimSuffix(external[pick.Intn(3)], ".") + ".shop.svc" + clusterDomain
		case at < len(services):
			name = services[at] + clusterDomain
		default:
			name = external[at-len(services)]
		}
		_, _ = lab.AskOn(c, lab.Query(name, dns.TypeA))
	}
}
