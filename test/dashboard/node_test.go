package dashboard

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip     = "169.254.20.10"
	metrics = "127.0.0.1:9253" // in the node's namespace
	coreDNS = "10.96.0.10"
	world   = "10.9.9.9" // an authoritative server
)

// resolvers are those of the node's network.
var resolvers = []string{"10.9.0.2", "10.9.0.3"}

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
    cache {
        prefetch 5 60s
        serve_stale
    }
    forward . 10.9.0.2 10.9.0.3 {
        health_check 1s
    }
    prometheus 127.0.0.1:9253
    redirect on {
        target 10.0.0.1:20053
        fallback 10.96.0.10
    }
}
`

// node is a node with nodens and redirected pods. A CoreDNS and two unbounds run outside
// the node.
type node struct {
	*lab.Node
	name     string
	kubepods string
	unbounds []*lab.Process
	metrics  string // address of the metrics, in the test's namespace
}

func newNode(t *testing.T, name string) *node {
	t.Helper()
	lab.NeedBPF(t)
	n := &node{Node: lab.NewNode(t, append(resolvers, coreDNS, world)...), name: name, kubepods: lab.NewKubepods(t)}
	n.startServers(t)
	pins := filepath.Join(lab.BPFFS, name)
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Corefile: corefile, Env: []string{"NODE_NAME=" + name},
		Args: []string{"-localip", vip, "-metrics-listen-address", "0", "-node-ip", lab.NodeIP, "-kubepods", n.kubepods, "-redirect-pin-dir", pins},
	})
	d.Err.WaitFor(t, 0, "sockets are redirected")
	n.metrics = n.Relay(t, metrics)
	n.startClients(t)
	return n
}

// services exist, most frequent first.
var services = []string{"api.payments", "redis-master.shop", "otel-collector.observability", "auth.identity", "checkout.shop", "postgres-rw.shop"}

// startServers starts what nodens asks. unbound asks a server that needs some
// milliseconds.
func (n *node) startServers(t *testing.T) {
	t.Helper()
	zone := "$ORIGIN cluster.local.\n@ 5 IN SOA ns.dns hostmaster 1 7200 1800 86400 5\n"
	for i, s := range services {
		zone += fmt.Sprintf("%s.svc 5 IN A 10.96.1.%d\n", s, i+1)
	}
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "zone"), zone)
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), fmt.Sprintf("cluster.local {\n bind %s\n file %s\n}\n", coreDNS, file))
	lab.Command{Netns: n.Outside, Args: []string{lab.CoreDNS(t), "-conf", conf}}.Start(t).Out.WaitFor(t, 0, "CoreDNS-")
	lab.StartUpstream(t, n.Outside, world+":53", func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		<-time.After(time.Duration(3+len(name)%7+rand.Intn(6)) * time.Millisecond)
		if strings.HasPrefix(name, "no") {
			return lab.Denial(q, dns.RcodeNameError, "example.com.")
		}
		return lab.ReplyAddress(q, "192.0.2.1")
	})
	for _, ip := range resolvers {
		n.unbounds = append(n.unbounds, lab.StartUnbound(t, n.Outside, ip, "", "forward-zone:\n\tname: .\n\tforward-addr: "+world+"\n"))
	}
}

// startClients starts pods: two with glibc's resolver, over UDP and TCP, and one that
// asks for Services and external names.
func (n *node) startClients(t *testing.T) {
	t.Helper()
	for _, options := range []string{"", "options use-vc\n"} {
		p := n.pod(t, fmt.Sprintf("glibc%d", len(options)))
		p.Binds = lab.Etc(t, "nameserver "+vip+"\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"+options)
		p.Args = []string{glibcClient.Path(t), "example.com", "10", "4", "api.payments.svc.cluster.local"}
		p.Start(t).Out.WaitFor(t, 0, `^started$`)
	}
	c := n.pod(t, "app").Netns.Dial(t, "udp", vip+":53")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); ask(ctx, c) }()
	t.Cleanup(func() { stop(); <-done })
}

// pod returns a command for a new pod.
func (n *node) pod(t *testing.T, name string) lab.Command {
	t.Helper()
	return lab.Command{Netns: n.AddPod(t, name), Cgroup: lab.MakeCgroup(t, filepath.Join(n.kubepods, name))}
}

// ask sends about 300 queries a second. Lost ones do not matter.
func ask(ctx context.Context, c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }() // replies
	defer c.Close()
	common := rand.NewZipf(rand.New(rand.NewSource(1)), 1.2, 1, 2000)
	for pace := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			pace.Stop()
			return
		case <-pace.C:
		}
		name := fmt.Sprintf("host%d.example.com.", common.Uint64())
		switch rand.Intn(20) {
		case 0:
			name = fmt.Sprintf("no%d.example.com.", common.Uint64())
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11:
			name = services[common.Uint64()%uint64(len(services))] + ".svc.cluster.local."
		}
		types := []uint16{dns.TypeA, dns.TypeAAAA}
		if len(name)%3 == 0 { // a client without IPv6
			types = types[:1]
		}
		for _, qtype := range types {
			if wire, err := lab.Query(name, qtype).Pack(); err == nil {
				_, _ = c.Write(wire)
			}
		}
	}
}

// suspend suspends resolvers for some time.
func suspend(t *testing.T, d time.Duration, unbounds ...*lab.Process) {
	t.Helper()
	for _, u := range unbounds {
		u.SignalAll(t, syscall.SIGSTOP)
	}
	<-time.After(d)
	for _, u := range unbounds {
		u.SignalAll(t, syscall.SIGCONT)
	}
}
