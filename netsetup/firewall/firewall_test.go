package firewall

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

var check = nstest.Check

func must(t *testing.T, f func(context.Context) error) {
	t.Helper()
	check(t, f(t.Context()))
}

func config(ns *nstest.Namespace, generation string) Config {
	return Config{
		LocalIPs: nstest.LocalIPs, Ports: nft.Ports{DNS: nstest.DNSPort, Health: 8080},
		Owner: owner.Identity{Generation: generation, NetNS: ns.FD(), Log: slog.New(slog.DiscardHandler), Now: time.Now},
	}
}

func newFirewall(t *testing.T, cfg Config) *Firewall {
	t.Helper()
	f, err := New(cfg)
	check(t, err)
	t.Cleanup(f.Close)
	return f
}

func repair(t *testing.T, f *Firewall) {
	t.Helper()
	_, _, err := f.Repair()
	check(t, err)
}

// Our rules accept only the local IPs' DNS and health traffic: no other ports,
// and no packets from a pod that uses a local IP as source.
func TestAcceptsNothingElse(t *testing.T) {
	ns := nstest.New(t)
	l := nstest.NewCluster(t, ns)
	f := newFirewall(t, config(ns, "g1"))
	for _, ip := range nstest.LocalIPs {
		ns.AddAddr(t, "lo", netip.PrefixFrom(ip, ip.BitLen()).String())
		ns.Serve(t, netip.AddrPortFrom(ip, 9), "other port")
	}
	victim := netip.MustParseAddrPort("[fd00:1::1]:9")
	spoofed := newSpoofing(t, l, netip.AddrPortFrom(nstest.LocalIPs[1], nstest.DNSPort), victim)
	spoofed.send(t, "without a firewall")
	spoofed.wantNext(t, "without a firewall")
	nstest.Firewalls[0].SetUp(t, ns)
	must(t, f.Ensure)
	for _, ip := range nstest.LocalIPs {
		for _, from := range []*nstest.Namespace{l.Pod, l.Node} {
			if got := from.QueryWithin(50*time.Millisecond, "udp", netip.AddrPortFrom(ip, 9)); got == "other port" {
				t.Errorf("port 9 of %s: %s", ip, got)
			}
		}
	}
	spoofed.send(t, "from a local IP, but not on lo")
	must(t, f.Remove)
	ns.Command(t, "nft", "delete table inet firewall")
	spoofed.send(t, "last")
	spoofed.wantNext(t, "last")
}

// spoofing is a pod that sends from an address of the node. For IPv6 the kernel
// has no check against that.
type spoofing struct {
	pod, node *net.UDPConn
	victim    netip.AddrPort
}

func newSpoofing(t *testing.T, l nstest.Cluster, source, victim netip.AddrPort) spoofing {
	t.Helper()
	s := spoofing{victim: victim}
	l.Node.Serve(t, netip.AddrPortFrom(victim.Addr(), nstest.DNSPort), "node")
	if got := l.Pod.Query("udp", victim.Addr()); got != "node" { // resolves the neighbour
		t.Fatal(got)
	}
	l.Pod.AddAddr(t, "eth0", netip.PrefixFrom(source.Addr(), 128).String())
	listen := func(ns *nstest.Namespace, local netip.AddrPort) (c *net.UDPConn) {
		ns.Inside(t, func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
			return err
		})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	s.pod, s.node = listen(l.Pod, source), listen(l.Node, victim)
	return s
}

func (s spoofing) send(t *testing.T, text string) {
	t.Helper()
	_, err := s.pod.WriteToUDPAddrPort([]byte(text), s.victim)
	check(t, err)
}

func (s spoofing) wantNext(t *testing.T, want string) {
	t.Helper()
	check(t, s.node.SetReadDeadline(time.Now().Add(30*time.Second)))
	b := make([]byte, 512)
	n, from, err := s.node.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != want {
		t.Fatalf("%q from %s, %v; want %q", b[:n], from, err, want)
	}
}

// The newest running process owns the rules, the last one deletes them, and a
// killed one does not block.
func TestOwnersOfAcceptRules(t *testing.T) {
	ns := nstest.New(t)
	nstest.Firewalls[0].SetUp(t, ns)
	before := ns.FirewallState(t)
	cfg, now := config(ns, "g1"), time.Now()
	cfg.Owner.Now = func() time.Time { return now }
	older, newer := newFirewall(t, cfg), newFirewall(t, config(ns, "g2"))
	wantMark := func(want string) {
		t.Helper()
		chains, err := readChains(older.nft)
		check(t, err)
		for _, c := range chains {
			all, marked := c.marked(everyGeneration), c.marked(func(g string) bool { return g == want })
			if len(marked) != len(older.want.accepts(c, want)) || len(all) != len(marked) {
				t.Errorf("%s: %d accept rules, %d of generation %q", c, len(all), len(marked), want)
			}
		}
	}
	must(t, older.Ensure)
	wantMark("g1")
	must(t, newer.Ensure)
	wantMark("g2")
	repair(t, older)
	wantMark("g2")
	must(t, newer.Remove)
	wantMark("g1")
	must(t, newer.Ensure)
	must(t, older.Remove)
	wantMark("g2")
	must(t, newer.Remove)
	ns.WantFirewall(t, "after removal", before)
	must(t, older.Ensure)
	must(t, newer.Ensure)
	newer.Close() // the kernel does the same for a killed process
	repair(t, older)
	wantMark("g2")
	now = now.Add(time.Minute)
	repair(t, older)
	wantMark("g1")
	older.Close()
	for range 2 {
		check(t, newFirewall(t, config(ns, "")).RemoveAll())
		ns.WantFirewall(t, "after RemoveAll", before)
	}
}

// Status reports a chain that cannot be opened; other chains are opened.
func TestStatusReportsDrops(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"nothing", "", ""},
		{"forwarding only", "table ip f { chain f { type filter hook forward priority 0; policy drop; }; }", ""},
		{"other family", "table arp f { chain f { type filter hook input priority 0; policy drop; }; }", ""},
		{"accepts at the end", "table ip f { chain f { type filter hook input priority 0; policy drop; accept; }; }", ""},
		{"returns to an accepting policy", "table ip f { chain f { type filter hook input priority 0; return; drop; }; }", ""},
		{"a condition", "table ip f { chain f { type filter hook input priority 0; tcp dport 22 drop; }; }", ""},
		{"a limit", "table ip f { chain f { type filter hook input priority 0; limit rate 1/second drop; }; }", ""},
		{"prerouting", "table ip f { chain f { type filter hook prerouting priority 0; policy drop; }; }", "chain ip f f drops by default at prerouting"},
		{"route", "table ip f { chain f { type route hook output priority 0; policy drop; }; }", "chain ip f f drops by default in a chain of type route"},
		{"nat, which untracked packets skip", "table ip f { chain f { type nat hook prerouting priority -100; policy drop; }; }", ""},
		{"two tables", "table ip f { chain f { type filter hook input priority 0; policy drop; }; }; table ip g { chain g { type filter hook prerouting priority 0; policy drop; }; }", "chain ip g g drops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			if tt.script != "" {
				ns.Command(t, "nft", tt.script)
			}
			f := newFirewall(t, config(ns, "g1"))
			must(t, f.Ensure)
			wantDrops(t, f, tt.want)
		})
	}
}

// A drop that another program adds before our rules stays.
func TestDropBeforeOurRulesStays(t *testing.T) {
	ns := nstest.New(t)
	nstest.Firewalls[0].SetUp(t, ns)
	f := newFirewall(t, config(ns, "g1"))
	must(t, f.Ensure)
	ns.Command(t, "nft", "insert rule inet firewall in drop")
	before := ns.FirewallState(t)
	must(t, f.Ensure)
	ns.WantFirewall(t, "after a second Ensure", before)
	wantDrops(t, f, "chain inet firewall in drops everything by a rule before those of nodens")
}

// Blocked reports a chain only if it certainly drops: pods then lose redirection.
func TestBlocked(t *testing.T) {
	nftRule := func(rules string) [][]string {
		return [][]string{{"nft", "table inet f { set s { type ipv4_addr; }; chain zone { iifname eth7 accept; }; chain f { type filter hook prerouting priority 0; policy drop; " + rules + " }; }"}}
	}
	iptables := func(condition ...string) [][]string {
		return [][]string{
			append([]string{"iptables-nft", "-t", "raw", "-A", "PREROUTING"}, condition...),
			{"iptables-nft", "-t", "raw", "-P", "PREROUTING", "DROP"},
		}
	}
	for _, tt := range []struct {
		name    string
		script  [][]string
		blocked bool
	}{
		{"only a policy", nftRule(""), true},
		{"established", nftRule("ct state established,related accept;"), true},
		{"lo", nftRule(`iifname "lo" counter accept;`), true},
		{"drops", nftRule("tcp dport 23 drop; ip saddr 10.0.0.7 reject; limit rate 1/second log;"), true},
		{"a set", nftRule("ip saddr @s drop;"), true},
		{"accepts after all is dropped", nftRule("drop; ip saddr 10.0.0.0/8 accept;"), true},
		{"iptables, established", iptables("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"), true},
		{"a source", nftRule("ip saddr 10.0.0.0/8 accept;"), false},
		{"a zone", nftRule("jump zone;"), false},
		{"a zone for a link", nftRule("iifname eth7 goto zone;"), false},
		{"returns", nftRule("iifname eth7 return;"), false},
		{"a map", nftRule("ct state vmap { established : accept, new : accept };"), false},
		{"new connections", nftRule("ct state new,established accept;"), false},
		{"all but established", nftRule("ct state != established accept;"), false},
		{"all but lo", nftRule(`iifname != "lo" accept;`), false},
		{"iptables, a source", iptables("-s", "10.0.0.0/8", "-j", "ACCEPT"), false},
		{"iptables, new", iptables("-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT"), false},
		{"iptables, not established", iptables("-m", "conntrack", "!", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			for _, c := range tt.script {
				ns.Command(t, c[0], c[1:]...)
			}
			f := newFirewall(t, config(ns, "g1"))
			must(t, f.Ensure)
			drop, err := f.Blocked()
			if (drop != nil) != tt.blocked || err != nil {
				t.Errorf("blocked: %+v, %v; want %t", drop, err, tt.blocked)
			}
		})
	}
}

// If another program replaces a table after we have read it, its rules may have
// the handles of ours.
func TestReplacedTableKeepsItsRules(t *testing.T) {
	ns := nstest.New(t)
	nstest.Firewalls[0].SetUp(t, ns)
	f := newFirewall(t, config(ns, "g1"))
	must(t, f.Ensure)
	at, err := f.nft.RulesetID()
	check(t, err)
	chains, err := readChains(f.nft)
	check(t, err)
	chain := chains[0]
	ours := chain.marked(everyGeneration)
	ns.Command(t, "nft", "delete table inet firewall; "+nstest.StrictInet)
	for range 20 {
		ns.Command(t, "nft", "add rule inet firewall "+chain.name+" tcp dport 22 accept")
	}
	before := ns.FirewallState(t)
	if !strings.Contains(before, fmt.Sprintf("tcp dport 22 accept # handle %d\n", ours[0].Handle)) {
		t.Fatalf("no rule has taken handle %d:\n%s", ours[0].Handle, before)
	}
	if err := chain.replace(f.nft, at, ours, nil); !isOutdated(err) {
		t.Errorf("deletion of replaced rules: %v", err)
	}
	must(t, f.Remove)
	ns.WantFirewall(t, "after removal", before)
}

// Our rules are deleted from a dormant table too, since it may become active.
func TestRulesLeaveDormantTable(t *testing.T) {
	for _, remove := range []struct {
		name string
		by   func(*Firewall) error
	}{
		{"Remove", func(f *Firewall) error { return f.Remove(t.Context()) }},
		{"RemoveAll", (*Firewall).RemoveAll},
		{"Ensure", func(f *Firewall) error { return f.Ensure(t.Context()) }},
	} {
		t.Run(remove.name, func(t *testing.T) {
			ns := nstest.New(t)
			nstest.Firewalls[0].SetUp(t, ns)
			dormant := "add table inet firewall { flags dormant; }"
			ns.Command(t, "nft", dormant)
			before := ns.FirewallState(t)
			ns.Command(t, "nft", "add table inet firewall")
			f := newFirewall(t, config(ns, "g1"))
			must(t, f.Ensure)
			ns.Command(t, "nft", dormant)
			if ns.FirewallState(t) == before {
				t.Fatal("Ensure changed nothing")
			}
			check(t, remove.by(f))
			ns.WantFirewall(t, "dormant table", before)
		})
	}
}

// Rules of other programs stay, even if their comments resemble ours.
func TestSimilarCommentsStay(t *testing.T) {
	ns := nstest.New(t)
	nstest.Firewalls[0].SetUp(t, ns)
	for _, comment := range []string{"nodens", "nodens generation", "nodens generation of rules", "for nodens generation g1"} {
		ns.Command(t, "nft", `add rule inet firewall in tcp dport 22 accept comment "`+comment+`"`)
	}
	before := ns.FirewallState(t)
	f := newFirewall(t, config(ns, "g1"))
	must(t, f.Ensure)
	must(t, f.Remove)
	check(t, f.RemoveAll())
	ns.WantFirewall(t, "after RemoveAll", before)
}

// Status reports a table that nodens cannot change and one that it cannot read.
func TestStatusReportsClosedFirewalls(t *testing.T) {
	t.Run("owned", func(t *testing.T) {
		ns := nstest.New(t)
		ownedFirewall(t, ns)
		f := newFirewall(t, config(ns, "g1"))
		for range 2 {
			must(t, f.Ensure)
			wantDrops(t, f, "chain inet firewalld in drops by default, and a process owns its table")
		}
		must(t, f.Remove)
		check(t, f.RemoveAll())
	})
	for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
		t.Run(program, func(t *testing.T) {
			ns := nstest.New(t)
			ns.Command(t, program, "-S")
			f := newFirewall(t, config(ns, "g1"))
			must(t, f.Ensure)
			s, err := f.Status()
			check(t, err)
			if len(s.Drops) != 1 || s.Drops[0].What != "the filter table of "+program {
				t.Errorf("drops: %+v", s.Drops)
			}
		})
	}
}

// ownedFirewall creates a table that only the test can change, until it ends.
func ownedFirewall(t *testing.T, ns *nstest.Namespace) {
	t.Helper()
	var raw *netlink.Conn
	conn, err := nftables.New(nftables.WithNetNSFd(ns.FD()), nftables.AsLasting(),
		nftables.WithSockOptions(func(c *netlink.Conn) error { raw = c; return nil }))
	check(t, err)
	t.Cleanup(func() { _ = conn.CloseLasting() })
	table := &nftables.Table{Name: "firewalld", Family: nftables.TableFamilyINet}
	msg, err := nft.Message(table.Family, unix.NFT_MSG_NEWTABLE, netlink.Create,
		nft.String(unix.NFTA_TABLE_NAME, table.Name), nft.Uint32(unix.NFTA_TABLE_FLAGS, nft.FlagOwner))
	check(t, err)
	check(t, nft.Commit(raw, 0, msg))
	drop := nftables.ChainPolicyDrop
	conn.AddChain(&nftables.Chain{
		Name: "in", Table: table, Type: nftables.ChainTypeFilter, Policy: &drop,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	check(t, conn.Flush())
}

func wantDrops(t *testing.T, f *Firewall, want string) {
	t.Helper()
	s, err := f.Status()
	check(t, err)
	if s.Problem != "" {
		t.Errorf("status: %+v", s)
	}
	var got strings.Builder
	for _, d := range s.Drops {
		got.WriteString(d.What + " " + d.Why)
	}
	if !strings.HasPrefix(got.String(), want) || (want == "") != (got.Len() == 0) {
		t.Errorf("drops %q, want %q", got.String(), want)
	}
	blocked, err := f.Blocked()
	check(t, err)
	if blocked == nil != (want == "") || blocked != nil && !strings.HasPrefix(blocked.What+" "+blocked.Why, want) {
		t.Errorf("blocked by %+v, want %q", blocked, want)
	}
	if n := testutil.ToFloat64(f.drops); n == 0 != (want == "") {
		t.Errorf("gauge of drops: %v", n)
	}
}
