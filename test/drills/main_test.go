// Package drills tests nodens while something around it fails: an upstream, the
// network, the disk, or a limit of the process. test/conformance has the failures
// that a scenario can describe.
package drills

import (
	"os"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens is built without the race detector, whose own limits would disturb these
// tests.
var nodens = lab.Nodens()

// Addresses in the network namespace of a test.
const (
	server   = "127.0.0.1:53"
	metrics  = "127.0.0.1:9253"
	upstream = "10.53.0.1"
	second   = "10.53.0.2"
)

// addresses are those of the upstreams.
var addresses = []string{upstream + "/32", second + "/32"}

// corefile forwards all queries to one address. more has options of forward.
func corefile(to, more string) string {
	return ". {\n errors\n bind 127.0.0.1\n cache 300\n prometheus " + metrics + "\n forward . " + to + " {\n" + more + "\n }\n}\n"
}

func start(t *testing.T, n *lab.Netns, corefile string, args ...string) *lab.Daemon {
	t.Helper()
	return lab.StartDaemon(t, lab.DaemonOptions{Binary: nodens.Path(t), Netns: n, Corefile: corefile, Args: args})
}

// address is the answer of every upstream to every name.
const address = "192.0.2.1"

func answer(q *dns.Msg) *dns.Msg { return lab.Reply(q, q.Question[0].Name+" 300 IN A "+address) }

// resolves fails the test unless name gets exactly one address over UDP.
func resolves(t *testing.T, n *lab.Netns, name string) {
	t.Helper()
	r := n.Ask(t, "udp", server, lab.Query(name, dns.TypeA))
	if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != address {
		t.Errorf("%s: %s %v", name, dns.RcodeToString[r.Rcode], got)
	}
}
