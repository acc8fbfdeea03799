package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip       = "169.254.20.10"
	nodeIP    = "10.9.0.1"
	target    = nodeIP + ":20053"
	upstream  = "10.9.0.53"
	coreDNS   = "10.9.0.54" // an endpoint: the fallback
	mainBlock = `. {
	errors
	cache 30
	bind ` + vip + `
	forward . ` + upstream + `
}
`
	// service is how long every server takes for every query.
	service = 50 * time.Millisecond
)

// node is a node with pods, and the servers beside it.
//
//	pod 10.8.N.2 ── 10.8.N.1 │ node │ 10.9.0.1 ── 10.9.0.53, 10.9.0.54 │ servers
type node struct {
	*lab.Netns
	kubepods  string
	pinDir    string
	conf      string
	pods      int
	atServer  *atomic.Int64 // queries that upstream received
	atCoreDNS *atomic.Int64
}

// pod is a network namespace and a cgroup.
type pod struct {
	netns  *lab.Netns
	cgroup string
}

func newNode(t *testing.T) *node {
	t.Helper()
	lab.NeedBPF(t)
	n := &node{Netns: lab.NewNetns(t, "node"), pinDir: filepath.Join(lab.BPFFS, "kill"), kubepods: lab.NewKubepods(t)}
	n.conf = lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), mainBlock)
	servers := lab.NewNetns(t, "servers")
	n.Join(t, "eth0", []string{nodeIP + "/24"}, servers, "eth0", []string{upstream + "/24", coreDNS + "/24"})
	servers.AddRoute(t, "10.8.0.0/16", nodeIP)
	err := n.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	n.atServer = serve(t, servers, upstream, "192.0.2.1")
	n.atCoreDNS = serve(t, servers, coreDNS, "192.0.2.2")
	return n
}

// serve answers everything at ip: with answer and an IPv6 address. It returns the
// count of queries.
func serve(t *testing.T, n *lab.Netns, ip, answer string) *atomic.Int64 {
	t.Helper()
	var count atomic.Int64
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		count.Add(1)
		<-time.After(service)
		name := q.Question[0].Name
		switch q.Question[0].Qtype {
		case dns.TypeA:
			_ = w.WriteMsg(lab.Reply(q, name+" 30 IN A "+answer))
		case dns.TypeAAAA:
			_ = w.WriteMsg(lab.Reply(q, name+" 30 IN AAAA 2001:db8::1"))
		default:
			_ = w.WriteMsg(lab.Denial(q, dns.RcodeSuccess, name))
		}
	})
	for _, s := range []*dns.Server{
		{PacketConn: n.ListenPacket(t, "udp", ip+":53"), Handler: handler},
		{Listener: n.Listen(t, "tcp", ip+":53"), Handler: handler},
	} {
		ended := make(chan error, 1)
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go func() { ended <- s.ActivateAndServe() }()
		select {
		case <-up:
		case err := <-ended:
			t.Fatalf("serve %s: %v", ip, err)
		}
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return &count
}

func (n *node) addPod(t *testing.T, name string) pod {
	t.Helper()
	n.pods++
	p := pod{lab.NewNetns(t, name), lab.MakeCgroup(t, filepath.Join(n.kubepods, name))}
	link, subnet := "pod"+name, fmt.Sprintf("10.8.%d.", n.pods)
	n.Join(t, link, []string{subnet + "1/24"}, p.netns, "eth0", []string{subnet + "2/24"})
	p.netns.AddRoute(t, "0.0.0.0/0", subnet+"1")
	return p
}
