package kill

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip       = "169.254.20.10"
	target    = lab.NodeIP + ":20053"
	upstream  = "10.9.0.53"
	coreDNS   = "10.9.0.54" // the fallback
	mainBlock = `. {
	errors
	cache 30
	bind ` + vip + `
	forward . ` + upstream + `
	redirect on {
		target ` + target + `
		FALLBACK
	}
	MORE
}
`
	// latency is the time that every server takes for every query.
	latency = 50 * time.Millisecond
)

// node is a node with pods and two servers outside.
type node struct {
	*lab.Node
	kubepods  string
	pinDir    string
	conf      string
	snapshot  string        // of the cache
	confine   []string      // runs the daemon with fewer capabilities
	atServer  *atomic.Int64 // queries that upstream received
	atCoreDNS *atomic.Int64
	popular   bool // every second lookup of a client is of one name
}

// pod is a network namespace and a cgroup.
type pod struct {
	netns  *lab.Netns
	cgroup string
}

func newNode(t *testing.T) *node {
	t.Helper()
	lab.NeedBPF(t)
	n := &node{Node: lab.NewNode(t, upstream, coreDNS), pinDir: filepath.Join(lab.BPFFS, t.Name()), kubepods: lab.NewKubepods(t), snapshot: filepath.Join(t.TempDir(), "run", "cache")}
	n.writeConf(t, "fallback "+coreDNS)
	n.atServer = serve(t, n.Outside, upstream, "192.0.2.1")
	n.atCoreDNS = serve(t, n.Outside, coreDNS, "192.0.2.2")
	return n
}

// writeConf writes the Corefile with an option of redirect and more directives.
func (n *node) writeConf(t *testing.T, fallback string, more ...string) {
	t.Helper()
	text := strings.NewReplacer("FALLBACK", fallback, "MORE", strings.Join(more, "\n\t")).Replace(mainBlock)
	n.conf = lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), text)
}

// writeConfWithout writes the Corefile without redirection.
func (n *node) writeConfWithout(t *testing.T) {
	t.Helper()
	before, rest, _ := strings.Cut(mainBlock, "\tredirect")
	_, after, _ := strings.Cut(rest, "\t}\n")
	n.conf = lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), before+strings.Replace(after, "MORE", "redirect off", 1))
}

// serve answers every name at ip with the address answer and with an IPv6 address.
// It returns the number of clients' queries.
func serve(t *testing.T, n *lab.Netns, ip, answer string) *atomic.Int64 {
	t.Helper()
	var count atomic.Int64
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Qtype == dns.TypeSOA || q.Question[0].Qclass != dns.ClassINET { // a check by nodens
			_ = w.WriteMsg(lab.Reply(q))
			return
		}
		count.Add(1)
		<-time.After(latency)
		_ = w.WriteMsg(lab.ReplyAddress(q, answer))
	})
	lab.Serve(t, n, ip+":53", func(string) dns.Handler { return handler })
	return &count
}

func (n *node) addPod(t *testing.T, name string) pod {
	t.Helper()
	return pod{n.AddPod(t, name), lab.MakeCgroup(t, filepath.Join(n.kubepods, name))}
}
