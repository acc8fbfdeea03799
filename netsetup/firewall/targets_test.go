package firewall

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
)

// Pods and the node reach the targets of redirection through a firewall that drops,
// and nothing else on those addresses.
func TestTargets(t *testing.T) {
	for _, fw := range nstest.Firewalls {
		t.Run(fw.Name, func(t *testing.T) {
			ns := nstest.New(t)
			l := nstest.NewCluster(t, ns)
			targets := []netip.AddrPort{netip.MustParseAddrPort("10.0.1.1:20053"), netip.MustParseAddrPort("[fd00:1::1]:20053")}
			for _, target := range targets {
				ns.Serve(t, target, "target")
				ns.Serve(t, netip.AddrPortFrom(target.Addr(), 20054), "other port")
			}
			fw.SetUp(t, ns)
			f := newFirewall(t, config(ns, "g1"))
			check(t, f.SetTargets(targets)) // not wanted yet
			for _, target := range targets {
				if got := l.Pod.QueryWithin(50*time.Millisecond, "udp", target); got == "target" {
					t.Fatalf("the firewall does not drop: this test proves nothing")
				}
			}
			must(t, f.Ensure)
			for _, target := range targets {
				for _, network := range []string{"udp", "tcp"} {
					for _, from := range []*nstest.Namespace{l.Pod, l.Node} {
						if got := from.QueryWithin(30*time.Second, network, target); got != "target" {
							t.Errorf("%v over %s: %s", target, network, got)
						}
					}
				}
				other := netip.AddrPortFrom(target.Addr(), 20054)
				if got := l.Pod.QueryWithin(50*time.Millisecond, "udp", other); got == "other port" {
					t.Errorf("%v is open", other)
				}
			}
			if s, err := newFirewall(t, config(ns, "")).Status(); s.Problem != "" || err != nil {
				t.Errorf("status of a process that does not know the targets: %s, %v", s.Problem, err)
			}
			check(t, f.SetTargets(nil))
			if got := l.Pod.QueryWithin(50*time.Millisecond, "udp", targets[0]); got == "target" {
				t.Error("a former target is open")
			}
		})
	}
}
