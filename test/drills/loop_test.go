package drills

import (
	"path/filepath"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestStubLoop: the node's resolv.conf names 127.0.0.53, where a stub resolver
// forwards to the node's DNS, which is nodens. That is said and counted, ends
// in SERVFAIL and not in a storm, and other zones resolve.
func TestStubLoop(t *testing.T) {
	t.Parallel()
	n := lab.NewNetns(t, "node", addresses...)
	n.AddAddrs(t, "lo", "127.0.0.53/32")
	up := lab.StartUpstream(t, n, upstream+":53", answer)
	stub := lab.StartDnsmasq(t, n, "127.0.0.53", "server=127.0.0.1\nlog-queries\n")
	resolvConf := lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), "nameserver 127.0.0.53\n")
	d := start(t, n, `cluster.local {
	errors
	bind 127.0.0.1
	forward . `+upstream+`
}
. {
	errors
	loop
	bind 127.0.0.1
	cache 30
	prometheus `+metrics+`
	forward . `+resolvConf+`
}
`, "-hedge=false") // queries are counted, and on a busy machine a reply may be late
	d.Err.WaitFor(t, 0, `level=ERROR.*forwarding loop`)
	n.WaitForMetric(t, metrics, 1, "nodens_loop_detected", "zone=.")
	if r := n.Ask(t, "udp", server, lab.Query("round.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("round.example.org.: %v", r)
	}
	resolves(t, n, "www.cluster.local.")
	if seen := up.Seen("www.cluster.local."); len(seen) != 1 {
		t.Errorf("upstream was asked %d times", len(seen))
	}
	stub.Kill()
	lab.StartUpstream(t, n, "127.0.0.53:53", answer)
	d.Signal(t, hangup) // sooner than by itself, in half a minute
	n.WaitForMetric(t, metrics, 0, "nodens_loop_detected", "zone=.")
}
