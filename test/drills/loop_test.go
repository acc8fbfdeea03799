package drills

import (
	"path/filepath"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestStubLoop: resolv.conf names 127.0.0.53, where a stub resolver forwards to
// nodens. nodens logs and counts the loop and answers SERVFAIL; queries do not
// multiply, and other zones resolve.
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
`, "-hedge=false") // the test counts queries, and on a busy machine a reply may be slow
	d.Err.WaitFor(t, 0, `level=ERROR.*forwarding loop`)
	n.WaitForMetric(t, metrics, 1, "nodens_loop_detected", "zone=.")
	if r := n.Ask(t, "udp", server, lab.Query("round.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("round.example.org.: %v", r)
	}
	resolves(t, n, "www.cluster.local.")
	if seen := up.Seen("www.cluster.local."); len(seen) != 1 {
		t.Errorf("upstream got %d queries", len(seen))
	}
	stub.Kill()
	lab.StartUpstream(t, n, "127.0.0.53:53", answer)
	d.Signal(t, hangup) // nodens would check again after half a minute
	n.WaitForMetric(t, metrics, 0, "nodens_loop_detected", "zone=.")
}
