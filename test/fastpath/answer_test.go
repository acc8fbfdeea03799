package fastpath

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestKernelAnswers: the kernel answers pods on a route and behind a bridge, over both
// address families, and its answers are in the metrics.
func TestKernelAnswers(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on")
	for _, pod := range []*lab.Netns{n.routed, n.bridged} {
		for _, server := range servers() {
			n.warm(t, pod, server, "name.example.")
			r := pod.Ask(t, "udp", server, lab.Query("name.example.", dns.TypeA))
			if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != "192.0.2.1" {
				t.Errorf("%s from %s: %v", pod.Name, server, r)
			}
		}
	}
	if got := len(n.servers.Seen("name.example.")); got != 1 {
		t.Errorf("%d upstream queries", got)
	}
}

// TestStatus: status says for each pod whether the kernel answers it, and why not.
func TestStatus(t *testing.T) {
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on {", "lease 30s", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	out, errs, _ := lab.Command{Netns: n.Netns, Args: []string{nodens.Path(t), "status", "-conf", d.Conf}}.Output(t)
	for _, want := range []string{"cali1: the kernel answers 1 addresses", "veth1: no lease"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s%s", want, out, errs)
		}
	}
}
