package hostmode

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// hostFirewall accepts packets on eth0 only, where the servers are. It drops those
// of pods and on lo.
const hostFirewall = `table inet firewall
delete table inet firewall
table inet firewall {
	chain in {
		type filter hook input priority filter; policy drop;
		iifname "eth0" accept
		meta l4proto 58 accept
	}
	chain out {
		type filter hook output priority filter; policy drop;
		oifname "eth0" accept
		meta l4proto 58 accept
	}
}
`

// TestHostFirewall has a node with a firewall that drops by default. Pods and the
// node get answers only with our rules, also after a reload of the firewall.
// Afterwards the firewall is as before, however nodens ended.
func TestHostFirewall(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pod := n.addPod(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP))
	n.write(t, "/etc/firewall.nft", hostFirewall)
	reload := func() { n.output(t, "nft", "-f", "/etc/firewall.nft") }
	local := []string{"-localip", localIP}
	clients := []*lab.Netns{pod, n.Netns}

	without := n.start(t, append([]string{"-setupiptables=false"}, local...)...)
	reload()
	for _, from := range clients {
		if answersSoon(from) {
			t.Errorf("%s gets an answer through the firewall: this test cannot fail", from.Name)
		}
	}
	if out, _, status := n.nodens(t, append([]string{"status", "-setupiptables=false"}, local...)...); status != 0 || !strings.Contains(out, "these chains drop by default: inet firewall in, inet firewall out\n") {
		t.Errorf("status without rules: %d\n%s", status, out)
	}
	without.stop(t)
	n.before = n.state(t)

	d := n.start(t, local...)
	served := func() {
		t.Helper()
		for _, from := range clients {
			answersFrom(t, from, localAddr, outside, outsideDNS)
		}
		if out, _, status := n.nodens(t, append([]string{"status"}, local...)...); status != 0 || !strings.Contains(out, "accepts\tin inet firewall in, inet firewall out\n") {
			t.Errorf("status: %d\n%s", status, out)
		}
	}
	served()
	logged := d.Err.Mark()
	reload()
	d.Err.WaitFor(t, logged, `drifted, repaired.* object=accepts`)
	served()
	d.Kill()
	d = n.start(t, local...)
	served()
	d.stop(t)
	n.wantRestored(t, "after SIGTERM")
	n.start(t, local...).Kill()
	if out, errs, status := n.nodens(t, append([]string{"teardown"}, local...)...); status != 0 {
		t.Errorf("teardown: status %d\n%s%s", status, out, errs)
	}
	n.wantRestored(t, "after teardown")
}

// answersSoon waits only briefly, for firewalls that never let an answer pass.
func answersSoon(from *lab.Netns) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", localAddr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
