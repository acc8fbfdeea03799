package normalize

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Zones of the names below. The first is on the node's search list.
const (
	suffix  = "corp.example."
	outside = "elsewhere.example."
)

// pair is the upstream's replies for the two types of a name.
type pair struct{ a, aaaa kind }

func (p pair) kind(qtype uint16) kind {
	if qtype == dns.TypeA {
		return p.a
	}
	return p.aaaa
}

// script is an upstream's names, each in suffix and in outside.
type script map[string]pair

func (s script) answer(q *dns.Msg, proto string) *dns.Msg {
	label, zone, _ := strings.Cut(dns.CanonicalName(q.Question[0].Name), ".")
	p, ok := s[label]
	if !ok {
		p = pair{nx, nx}
	}
	return p.kind(q.Question[0].Qtype).answer(q, proto, zone, s1)
}

// nodeWith is a cluster with a scripted upstream and a node-local nodens whose
// root zone has the given additional directives. On otherIP it serves the same
// without normalising, from another cache.
func nodeWith(t testing.TB, build *lab.Program, answer func(q *dns.Msg, proto string) *dns.Msg, directives string) (*cluster, *upstream) {
	t.Helper()
	c := newCluster(t)
	up := c.addServer(t, "upstream")
	u := startUpstream(t, up.netns, answer, up.forNode)
	c.start(t, build, "nameserver "+up.forNode+"\nsearch "+suffix+"\n",
		rootBlock(53, localIP, admin+directives)+rootBlock(53, otherIP, "normalize {\n mode off\n}"),
		"-hedge=false") // the test counts queries, and a reply may be late on a busy machine
	return c, u
}

func rootBlock(port int, ip, directives string) string {
	return fmt.Sprintf(`.:%d {
		errors
		cache 30
		bind %s
		forward . /etc/resolv.conf
		%s
	}
	`, port, ip, directives)
}

// The addresses that the pod queries.
const (
	onAddr  = localIP + ":53"
	offAddr = otherIP + ":53" // does not normalise
)

// ask sends one query over UDP from the pod.
func (c *cluster) ask(t testing.TB, addr, name string, qtype uint16, opts ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	q := lab.Query(name, qtype)
	for _, o := range opts {
		o(q)
	}
	return c.pod.Ask(t, "udp", addr, q)
}

func withOPT(q *dns.Msg) { q.SetEdns0(1232, false) }
func withDO(q *dns.Msg)  { q.SetEdns0(1232, true) }
