package fastpath

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestLimitOfLeasedClient: the limit of misses in flight applies to a client that the
// kernel answers, because the kernel passes its misses. Hits have no limit: meanwhile the
// kernel answers the client, and nodens resolves misses of another one.
func TestLimitOfLeasedClient(t *testing.T) {
	hang := make(chan struct{})
	n := newNode(t, func(q *dns.Msg) *dns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "slow") {
			<-hang
		}
		return fixed(q)
	})
	t.Cleanup(func() { close(hang) }) // before the upstream ends
	lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Corefile: corefileWith("fastpath on {", "lease 30s", "}"),
		Args: []string{"-keep-privileges", "-max-misses-per-client", "1"},
	})
	n.warm(t, n.routed, vip4+":53", "name.example.")
	wire, err := lab.Query("slow1.example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.routed.Dial(t, "udp", vip4+":53").Write(wire); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); len(n.servers.Seen("slow1.example.")) == 0; {
		if time.Now().After(late) {
			t.Fatal("the upstream does not get the first query")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if r := n.routed.Ask(t, "udp", vip4+":53", lab.Query("slow2.example.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("a second miss of the client has rcode %d, want SERVFAIL", r.Rcode)
	}
	if limited, _ := n.Scrape(t, metrics).Sum("nodens_server_client_limited_total"); limited != 1 {
		t.Errorf("%v queries were limited, want 1", limited)
	}
	before := n.answers(t)
	n.warm(t, n.routed, vip4+":53", "name.example.")
	if n.answers(t) == before {
		t.Error("the kernel does not answer the client's hits")
	}
	if r := n.bridged.Ask(t, "udp", vip4+":53", lab.Query("other.example.", dns.TypeA)); r.Rcode != dns.RcodeSuccess {
		t.Errorf("a miss of another client has rcode %d", r.Rcode)
	}
}
