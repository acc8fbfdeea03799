package netsetup

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
)

// localEnds are the local IPs' DNS and health ports.
var localEnds = []struct {
	network string
	port    uint16
}{{"udp", DefaultDNSPort}, {"tcp", DefaultDNSPort}, {"tcp", 8080}}

// The local IPs' traffic passes a host firewall from Ensure to Remove only.
func TestFirewallPassesLocalTraffic(t *testing.T) {
	for _, f := range nstest.Firewalls {
		t.Run(f.Name, func(t *testing.T) {
			ns := newNamespace(t)
			l := newCluster(t, ns)
			h := newHost(t, ns.config(onLo, "g1"))
			ns.ensureAddresses(t, h)
			for _, ip := range nstest.LocalIPs {
				ns.Serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
				ns.Serve(t, netip.AddrPortFrom(ip, 8080), "cache")
			}
			l.localAnswers(t, true)
			f.SetUp(t, ns.Namespace)
			before := ns.FirewallState(t)
			l.localAnswers(t, false)
			must(t, h.Firewall.Ensure)
			once := ns.FirewallState(t)
			l.localAnswers(t, true)
			must(t, h.Rules.Ensure)
			l.localAnswers(t, true)
			wantOK(t, h)
			must(t, h.Rules.Remove)
			if f.Golden != nil {
				nstest.Golden(t, "accepts."+f.Name, nstest.WithoutCounts(ns.Command(t, f.Golden[0], f.Golden[1:]...)))
			}
			must(t, h.Firewall.Ensure)
			ns.WantFirewall(t, "after a second Ensure", once)
			must(t, h.Firewall.Remove)
			ns.WantFirewall(t, "after removal", before)
			l.localAnswers(t, false)
		})
	}
}

// localAnswers queries the local IPs from the pod and from the node. A blocked
// query stays blocked, so its timeout is short.
func (l cluster) localAnswers(t *testing.T, want bool) {
	t.Helper()
	timeout := 30 * time.Second
	if !want {
		timeout = 50 * time.Millisecond
	}
	for _, from := range []*nstest.Namespace{l.Pod, l.Node} {
		for _, ip := range nstest.LocalIPs {
			for _, end := range localEnds {
				got := from.QueryWithin(timeout, end.network, netip.AddrPortFrom(ip, end.port))
				if (got == "cache") != want {
					t.Errorf("%s to %s port %d, from the node %t: %s, want an answer %t", end.network, ip, end.port, from == l.Node, got, want)
				}
			}
		}
	}
}

// Changes of other programs to their tables while Watch runs.
var reloads = []struct {
	name     string
	commands [][]string
	chains   int // with rules of ours afterwards
}{
	{"table replaced", [][]string{nstest.Nft("delete table inet firewall; " + nstest.StrictInet)}, 2},
	{"table replaced in two steps", [][]string{nstest.Nft("delete table inet firewall"), nstest.Nft(nstest.StrictInet)}, 2},
	{"chain flushed", [][]string{nstest.Nft("flush chain inet firewall in; add rule inet firewall in icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept")}, 2},
	{"policy accept", [][]string{nstest.Nft("chain inet firewall out { policy accept; }")}, 1},
	{"policy drop", [][]string{nstest.Nft("chain inet firewall out { policy drop; }")}, 2},
	{"another table", [][]string{nstest.Nft("table ip other { chain x { type filter hook input priority 5; policy drop; }; }")}, 3},
	{"policies accept", [][]string{nstest.Nft("chain inet firewall out { policy accept; }; chain inet firewall in { policy accept; }")}, 1},
	{"last rule", [][]string{nstest.Nft("add rule inet firewall in reject")}, 2},
	{"last rule of a chain", [][]string{
		nstest.Nft("add chain inet firewall sub; add rule inet firewall out jump sub"),
		nstest.Nft("add rule inet firewall sub counter drop"),
	}, 3},
	{"rule out of a chain", [][]string{nstest.Nft("flush chain inet firewall sub")}, 2},
	{"dormant and active again", [][]string{nstest.Nft("delete table inet firewall; " + strings.Replace(nstest.StrictInet, "{", "{ flags dormant;", 1)), nstest.Nft("add table inet firewall")}, 3},
	{"iptables", [][]string{{"iptables-nft", "-P", "INPUT", "DROP"}}, 4},
	{"iptables flushed", [][]string{{"iptables-nft", "-F"}}, 4},
	{"iptables counters zeroed", [][]string{{"iptables-nft", "-Z"}}, 4},
	{"first rule of iptables deleted", [][]string{{"iptables-nft", "-D", "INPUT", "1"}}, 4},
	{"iptables saved and restored", [][]string{{"sh", "-c", "iptables-nft-save >$0 && iptables-nft-restore <$0"}}, 4},
}

func TestWatchFollowsFirewall(t *testing.T) {
	ns := newNamespace(t)
	reported := make(repairs, 100)
	cfg := ns.config(onLo, "g1")
	cfg.SyncInterval = time.Hour // only notifications cause a repair
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	nstest.Firewalls[0].SetUp(t, ns.Namespace)
	must(t, h.ensureBoth)
	must(t, h.Firewall.Ensure)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	file := t.TempDir() + "/saved"
	for _, r := range reloads {
		t.Run(r.name, func(t *testing.T) {
			for _, c := range r.commands {
				if c[0] == "sh" {
					_ = ns.Command(t, "iptables-nft", "-S") // skips the test if it is not installed
					c = append(c[:len(c):len(c)], file)
				}
				ns.Command(t, c[0], c[1:]...)
			}
			h.waitChains(t, reported, r.chains)
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// waitChains waits until that many chains have our rules and the status is OK.
func (h *Host) waitChains(t *testing.T, reported repairs, chains int) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		s, err := h.Status(t.Context())
		check(t, err)
		if s.OK() && len(s.Firewall.Chains) == chains {
			return
		}
		select {
		case <-reported:
		case <-deadline.C:
			t.Fatalf("status: %+v, want rules in %d chains", s, chains)
		}
	}
}
