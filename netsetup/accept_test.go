package netsetup

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// firewall is a host firewall that knows nothing of the local IPs. All of them
// let neighbour discovery pass, and nothing else: not even lo.
type firewall struct {
	name   string
	script [][]string // commands
	golden []string   // command whose output is compared
}

func nft(script string) []string { return []string{"nft", script} }

const (
	strictInet = `table inet firewall {
	chain in { type filter hook input priority filter; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
	chain out { type filter hook output priority filter; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
}`
	rejectingInet = `table inet firewalld {
	chain zones { iifname "eth7" accept; }
	chain last { counter; reject with icmpx admin-prohibited; }
	chain in { type filter hook input priority filter + 10; policy accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; jump zones; jump last; }
	chain out { type filter hook output priority filter + 10; policy accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; goto last; }
}`
	strictPerFamily = `table ip firewall {
	chain in { type filter hook input priority -10; policy drop; }
	chain out { type filter hook output priority -10; policy drop; }
}
table ip6 firewall {
	chain in { type filter hook input priority -10; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
	chain out { type filter hook output priority -10; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
}`
)

// iptables is what a script of an administrator's does, in the nf_tables
// variant.
func iptables(drop func(program, chain string) []string) (script [][]string) {
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			if program == "ip6tables-nft" {
				script = append(script, []string{program, "-A", chain, "-p", "icmpv6", "-j", "ACCEPT"})
			}
			script = append(script, drop(program, chain))
		}
	}
	return script
}

var firewalls = []firewall{
	{"inet", [][]string{nft(strictInet)}, []string{"nft", "list", "table", "inet", "firewall"}},
	{"families", [][]string{nft(strictPerFamily)}, []string{"nft", "list", "table", "ip6", "firewall"}},
	{"reject", [][]string{nft(rejectingInet)}, nil},
	{"iptables-policy", iptables(func(program, chain string) []string {
		return []string{program, "-P", chain, "DROP"}
	}), []string{"iptables-nft", "-S"}},
	{"iptables-last", iptables(func(program, chain string) []string {
		return []string{program, "-A", chain, "-m", "comment", "--comment", "the rest", "-j", "REJECT"}
	}), []string{"ip6tables-nft", "-S"}},
}

func (f firewall) setUp(t *testing.T, ns *namespace) {
	t.Helper()
	for _, c := range f.script {
		ns.command(t, c[0], c[1:]...)
	}
}

var (
	counted       = regexp.MustCompile(`(packets|bytes) \d+`)
	countedPolicy = regexp.MustCompile(`\[\d+:\d+\]`)
)

// firewallState leaves out what counters have counted.
func (ns *namespace) firewallState(t *testing.T) string {
	t.Helper()
	s := counted.ReplaceAllString(ns.command(t, "nft", "-a", "list", "ruleset"), "$1 0")
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		if _, err := exec.LookPath(program); err == nil && strings.Contains(s, "filter {") {
			for line := range strings.Lines(ns.command(t, program)) {
				if !strings.HasPrefix(line, "#") { // the time
					s += countedPolicy.ReplaceAllString(line, "")
				}
			}
		}
	}
	return s
}

// localEnds are the local IPs' DNS and health ports.
var localEnds = []struct {
	network string
	port    uint16
}{{"udp", DefaultDNSPort}, {"tcp", DefaultDNSPort}, {"tcp", 8080}}

// A host that drops by default lets the local IPs' traffic pass, and only while
// we want it.
func TestAcceptsPassFirewall(t *testing.T) {
	for _, f := range firewalls {
		t.Run(f.name, func(t *testing.T) {
			ns := newNamespace(t)
			l := newLab(t, ns)
			h := newHost(t, ns.config(modes[1], "g1"))
			ns.ensureAddresses(t, h)
			for _, ip := range bothFamilies {
				ns.serve(t, netip.AddrPortFrom(ip, DefaultDNSPort), "cache")
				ns.serve(t, netip.AddrPortFrom(ip, 8080), "cache")
			}
			l.localAnswers(t, true)
			f.setUp(t, ns)
			before := ns.firewallState(t)
			l.localAnswers(t, false)
			must(t, h.EnsureAccepts)
			once := ns.firewallState(t)
			l.localAnswers(t, true)
			must(t, h.EnsureRules)
			l.localAnswers(t, true)
			wantOK(t, h)
			must(t, h.RemoveRules)
			if f.golden != nil {
				golden(t, "accepts."+f.name, counted.ReplaceAllString(ns.command(t, f.golden[0], f.golden[1:]...), "$1 0"))
			}
			must(t, h.EnsureAccepts)
			if twice := ns.firewallState(t); twice != once {
				t.Errorf("second EnsureAccepts changed\n%s\nto\n%s", once, twice)
			}
			must(t, h.RemoveAccepts)
			if after := ns.firewallState(t); after != before {
				t.Errorf("after removal:\n%s\nbefore:\n%s", after, before)
			}
			l.localAnswers(t, false)
		})
	}
}

// localAnswers asks the local IPs from the pod and from the node. What is
// blocked stays so, however long one waits: so it need not be long.
func (l lab) localAnswers(t *testing.T, want bool) {
	t.Helper()
	timeout := 30 * time.Second
	if !want {
		timeout = 50 * time.Millisecond
	}
	for _, from := range []*namespace{l.pod, l.node} {
		for _, ip := range bothFamilies {
			for _, end := range localEnds {
				got := from.askWithin(timeout, end.network, netip.AddrPortFrom(ip, end.port))
				if (got == "cache") != want {
					t.Errorf("%s to %s port %d, from the node %t: %s, want an answer %t", end.network, ip, end.port, from == l.node, got, want)
				}
			}
		}
	}
}

// No packet passes by our rules but the local IPs' DNS and health traffic: not
// other ports, nor a source address that somebody else has taken on.
func TestAcceptsPassNothingElse(t *testing.T) {
	ns := newNamespace(t)
	l := newLab(t, ns)
	h := newHost(t, ns.config(modes[1], "g1"))
	ns.ensureAddresses(t, h)
	for _, ip := range bothFamilies {
		ns.serve(t, netip.AddrPortFrom(ip, 9), "other port")
	}
	victim := netip.MustParseAddrPort("[fd00:1::1]:9")
	spoofed := newSpoofing(t, l, netip.AddrPortFrom(bothFamilies[1], DefaultDNSPort), victim)
	spoofed.send(t, "without a firewall")
	spoofed.wantNext(t, "without a firewall")
	firewalls[0].setUp(t, ns)
	must(t, h.EnsureAccepts)
	for _, ip := range bothFamilies {
		for _, from := range []*namespace{l.pod, l.node} {
			if got := from.askWithin(50*time.Millisecond, "udp", netip.AddrPortFrom(ip, 9)); got == "other port" {
				t.Errorf("port 9 of %s: %s", ip, got)
			}
		}
	}
	spoofed.send(t, "from a local IP, but not by lo")
	must(t, h.RemoveAccepts)
	ns.command(t, "nft", "delete table inet firewall")
	spoofed.send(t, "last")
	spoofed.wantNext(t, "last")
}

// spoofing is a pod that sends from an address of the node's. IPv6 has no check
// of its own against that.
type spoofing struct {
	pod, node *net.UDPConn
	victim    netip.AddrPort
}

func newSpoofing(t *testing.T, l lab, source, victim netip.AddrPort) spoofing {
	t.Helper()
	s := spoofing{victim: victim}
	l.node.serve(t, netip.AddrPortFrom(victim.Addr(), DefaultDNSPort), "node")
	if got := l.pod.ask("udp", victim.Addr()); got != "node" { // the pod knows the neighbour from now on
		t.Fatal(got)
	}
	eth0 := l.pod.addTo(t, "eth0")
	l.pod.put(t, eth0, ifAddr{prefix: netip.PrefixFrom(source.Addr(), 128)})
	listen := func(ns *namespace, local netip.AddrPort) (c *net.UDPConn) {
		ns.inside(t, func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
			return err
		})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	s.pod, s.node = listen(l.pod, source), listen(l.node, victim)
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

// What others do to their tables under Watch.
var reloads = []struct {
	name     string
	commands [][]string
	chains   int // that hold rules of ours afterwards
}{
	{"table anew", [][]string{nft("delete table inet firewall; " + strictInet)}, 2},
	{"table anew in two steps", [][]string{nft("delete table inet firewall"), nft(strictInet)}, 2},
	{"chain flushed", [][]string{nft("flush chain inet firewall in; add rule inet firewall in icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept")}, 2},
	{"policy accept", [][]string{nft("chain inet firewall out { policy accept; }")}, 1},
	{"policy drop", [][]string{nft("chain inet firewall out { policy drop; }")}, 2},
	{"another table", [][]string{nft("table ip other { chain x { type filter hook input priority 5; policy drop; }; }")}, 3},
	{"policies accept", [][]string{nft("chain inet firewall out { policy accept; }; chain inet firewall in { policy accept; }")}, 1},
	{"last rule", [][]string{nft("add rule inet firewall in reject")}, 2},
	{"last rule of a chain", [][]string{
		nft("add chain inet firewall sub; add rule inet firewall out jump sub"),
		nft("add rule inet firewall sub counter drop"),
	}, 3},
	{"rule out of a chain", [][]string{nft("flush chain inet firewall sub")}, 2},
	{"dormant and awake", [][]string{nft("delete table inet firewall; " + strings.Replace(strictInet, "{", "{ flags dormant;", 1)), nft("add table inet firewall")}, 3},
	{"iptables", [][]string{{"iptables-nft", "-P", "INPUT", "DROP"}}, 4},
	{"iptables flushed", [][]string{{"iptables-nft", "-F"}}, 4},
	{"iptables counters zeroed", [][]string{{"iptables-nft", "-Z"}}, 4},
	{"first rule of iptables deleted", [][]string{{"iptables-nft", "-D", "INPUT", "1"}}, 4},
	{"iptables saved and restored", [][]string{{"sh", "-c", "iptables-nft-save >$0 && iptables-nft-restore <$0"}}, 4},
}

func TestWatchFollowsFirewall(t *testing.T) {
	ns := newNamespace(t)
	reported := make(repairs, 100)
	cfg := ns.config(modes[1], "g1")
	cfg.SyncInterval = time.Hour // so that only notifications can cause a repair
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	firewalls[0].setUp(t, ns)
	must(t, h.ensureBoth)
	must(t, h.EnsureAccepts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	file := t.TempDir() + "/saved"
	for _, r := range reloads {
		t.Run(r.name, func(t *testing.T) {
			for _, c := range r.commands {
				if c[0] == "sh" {
					_ = ns.command(t, "iptables-nft", "-S") // or skip
					c = append(c[:len(c):len(c)], file)
				}
				ns.command(t, c[0], c[1:]...)
			}
			h.untilAccepts(t, reported, r.chains)
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// untilAccepts waits until that many chains have our rules and all is as
// wanted.
func (h *Host) untilAccepts(t *testing.T, reported repairs, chains int) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		s, err := h.Status(t.Context())
		check(t, err)
		if s.OK() && len(s.Accepts.Chains) == chains {
			return
		}
		select {
		case <-reported:
		case <-deadline.C:
			t.Fatalf("status: %+v, want rules in %d chains", s, chains)
		}
	}
}

// Who runs has the rules; who ends last removes them; who is killed holds nobody
// up.
func TestAcceptsChangeHands(t *testing.T) {
	ns := newNamespace(t)
	firewalls[0].setUp(t, ns)
	before := ns.firewallState(t)
	older, newer := newHost(t, ns.config(modes[1], "g1")), newHost(t, ns.config(modes[1], "g2"))
	wantMark := func(want string) {
		t.Helper()
		chains, err := older.foreignChains()
		check(t, err)
		for _, c := range chains {
			all, marked := c.marked(everyGeneration), c.marked(func(g string) bool { return g == want })
			if len(marked) != len(c.accepts(older.cfg)) || len(all) != len(marked) {
				t.Errorf("%s: %d rules of ours, %d of generation %q", c, len(all), len(marked), want)
			}
		}
	}
	must(t, older.EnsureAccepts)
	wantMark("g1")
	must(t, newer.EnsureAccepts)
	wantMark("g2")
	older.repair(false, true)
	wantMark("g2")
	must(t, newer.RemoveAccepts)
	wantMark("g1")
	must(t, newer.EnsureAccepts)
	must(t, older.RemoveAccepts)
	wantMark("g2")
	must(t, newer.RemoveAccepts)
	if after := ns.firewallState(t); after != before {
		t.Errorf("after removal:\n%s\nbefore:\n%s", after, before)
	}
	must(t, older.EnsureAccepts)
	must(t, newer.EnsureAccepts)
	check(t, newer.Close()) // the kernel does as much for a killed process
	wantMark("g2")
	older.endsWithin = 0
	older.repair(false, true)
	wantMark("g1")
	check(t, older.Close())
	for range 2 {
		check(t, Teardown(t.Context(), Config{NetNS: ns.fd}))
		if after := ns.firewallState(t); after != before {
			t.Errorf("after teardown:\n%s\nbefore:\n%s", after, before)
		}
	}
}

// What cannot be opened is named, and does not keep the rest from it.
func TestForeignDropsAreNamed(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"nothing", "", ""},
		{"forwarding only", "table ip f { chain f { type filter hook forward priority 0; policy drop; }; }", ""},
		{"other family", "table arp f { chain f { type filter hook input priority 0; policy drop; }; }", ""},
		{"accepts in the end", "table ip f { chain f { type filter hook input priority 0; policy drop; accept; }; }", ""},
		{"returns to a good policy", "table ip f { chain f { type filter hook input priority 0; return; drop; }; }", ""},
		{"a condition", "table ip f { chain f { type filter hook input priority 0; tcp dport 22 drop; }; }", ""},
		{"a limit", "table ip f { chain f { type filter hook input priority 0; limit rate 1/second drop; }; }", ""},
		{"prerouting", "table ip f { chain f { type filter hook prerouting priority 0; policy drop; }; }", "chain ip f f drops by default at prerouting"},
		{"route", "table ip f { chain f { type route hook output priority 0; policy drop; }; }", "chain ip f f drops by default in a chain of type route"},
		{"nat, which untracked packets do not pass", "table ip f { chain f { type nat hook prerouting priority -100; policy drop; }; }", ""},
		{"two tables", "table ip f { chain f { type filter hook input priority 0; policy drop; }; }; table ip g { chain g { type filter hook prerouting priority 0; policy drop; }; }", "chain ip g g drops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := newNamespace(t)
			if tt.script != "" {
				ns.command(t, "nft", tt.script)
			}
			h := newHost(t, ns.config(modes[1], "g1"))
			must(t, h.EnsureAccepts)
			wantDrops(t, h, tt.want)
		})
	}
}

// A drop that somebody puts before our rules counts as meant: no tug-of-war.
func TestDropBeforeAcceptsStays(t *testing.T) {
	ns := newNamespace(t)
	firewalls[0].setUp(t, ns)
	h := newHost(t, ns.config(modes[1], "g1"))
	must(t, h.EnsureAccepts)
	ns.command(t, "nft", "insert rule inet firewall in drop")
	before := ns.firewallState(t)
	must(t, h.EnsureAccepts)
	if after := ns.firewallState(t); after != before {
		t.Errorf("changed to:\n%s", after)
	}
	wantDrops(t, h, "chain inet firewall in drops everything by a rule before those of nodens")
}

// A table that somebody makes anew after we have read it has rules of theirs
// where ours were: the same handles.
func TestTableMadeAnewLosesNothing(t *testing.T) {
	ns := newNamespace(t)
	firewalls[0].setUp(t, ns)
	h := newHost(t, ns.config(modes[1], "g1"))
	must(t, h.EnsureAccepts)
	at, err := h.rulesetID()
	check(t, err)
	chains, err := h.foreignChains()
	check(t, err)
	chain := chains[0]
	ours := chain.marked(everyGeneration)
	ns.command(t, "nft", "delete table inet firewall; "+strictInet)
	for range 20 {
		ns.command(t, "nft", "add rule inet firewall "+chain.name+" tcp dport 22 accept")
	}
	before := ns.firewallState(t)
	if !strings.Contains(before, fmt.Sprintf("tcp dport 22 accept # handle %d\n", ours[0].handle)) {
		t.Fatalf("no rule has taken handle %d:\n%s", ours[0].handle, before)
	}
	if err := h.replaceRules(at, chain, ours, nil); !isOutdated(err) {
		t.Errorf("deletion of what is no longer there: %v", err)
	}
	must(t, h.RemoveAccepts)
	if after := ns.firewallState(t); after != before {
		t.Errorf("changed to:\n%s\nbefore:\n%s", after, before)
	}
}

// A table that is put to sleep does not keep our rules for when it wakes.
func TestAcceptsLeaveDormantTable(t *testing.T) {
	for _, remove := range []struct {
		name string
		by   func(*Host) error
	}{
		{"Remove", func(h *Host) error { return h.RemoveAccepts(t.Context()) }},
		{"Teardown", func(h *Host) error { return Teardown(t.Context(), Config{NetNS: h.cfg.NetNS}) }},
		{"Ensure", func(h *Host) error { return h.EnsureAccepts(t.Context()) }},
	} {
		t.Run(remove.name, func(t *testing.T) {
			ns := newNamespace(t)
			firewalls[0].setUp(t, ns)
			sleep := "add table inet firewall { flags dormant; }"
			ns.command(t, "nft", sleep)
			before := ns.firewallState(t)
			ns.command(t, "nft", "add table inet firewall")
			h := newHost(t, ns.config(modes[1], "g1"))
			must(t, h.EnsureAccepts)
			ns.command(t, "nft", sleep)
			if ns.firewallState(t) == before {
				t.Fatal("nothing was there to remove")
			}
			check(t, remove.by(h))
			if after := ns.firewallState(t); after != before {
				t.Errorf("dormant table has\n%s\nwant\n%s", after, before)
			}
		})
	}
}

// Rules of others stay, however much their comments sound like ours.
func TestForeignCommentsStay(t *testing.T) {
	ns := newNamespace(t)
	firewalls[0].setUp(t, ns)
	for _, comment := range []string{"nodens", "nodens generation", "nodens generation of rules", "for nodens generation g1"} {
		ns.command(t, "nft", `add rule inet firewall in tcp dport 22 accept comment "`+comment+`"`)
	}
	before := ns.firewallState(t)
	h := newHost(t, ns.config(modes[1], "g1"))
	must(t, h.EnsureAccepts)
	must(t, h.RemoveAccepts)
	check(t, Teardown(t.Context(), Config{NetNS: ns.fd}))
	if after := ns.firewallState(t); after != before {
		t.Errorf("changed to:\n%s", after)
	}
}

// A firewall that lets nobody change its table, and one that we cannot read.
func TestClosedFirewallsAreNamed(t *testing.T) {
	t.Run("owned", func(t *testing.T) {
		ns := newNamespace(t)
		ns.ownedFirewall(t)
		h := newHost(t, ns.config(modes[1], "g1"))
		for range 2 {
			must(t, h.EnsureAccepts)
			wantDrops(t, h, "chain inet firewalld in drops by default, and a process owns its table")
		}
		must(t, h.RemoveAccepts)
		check(t, Teardown(t.Context(), Config{NetNS: ns.fd}))
	})
	for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
		t.Run(program, func(t *testing.T) {
			ns := newNamespace(t)
			ns.command(t, program, "-S")
			h := newHost(t, ns.config(modes[1], "g1"))
			must(t, h.EnsureAccepts)
			s, err := h.Status(t.Context())
			check(t, err)
			if len(s.ForeignDrops) != 1 || s.ForeignDrops[0].What != "the filter table of "+program {
				t.Errorf("foreign drops: %+v", s.ForeignDrops)
			}
		})
	}
}

// ownedFirewall makes a table that only the test can change, until it ends.
func (ns *namespace) ownedFirewall(t *testing.T) {
	t.Helper()
	var raw *mdlayher.Conn
	conn, err := nftables.New(nftables.WithNetNSFd(ns.fd), nftables.AsLasting(),
		nftables.WithSockOptions(func(c *mdlayher.Conn) error { raw = c; return nil }))
	check(t, err)
	t.Cleanup(func() { _ = conn.CloseLasting() })
	table := inetTable("firewalld")
	msg, err := tableMessage(unix.NFT_MSG_NEWTABLE, mdlayher.Create,
		mdlayher.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(table.Name), 0)},
		mdlayher.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: ownerFlag()})
	check(t, err)
	check(t, commit(raw, msg))
	drop := nftables.ChainPolicyDrop
	conn.AddChain(&nftables.Chain{
		Name: "in", Table: table, Type: nftables.ChainTypeFilter, Policy: &drop,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	check(t, conn.Flush())
}

func wantDrops(t *testing.T, h *Host, want string) {
	t.Helper()
	s, err := h.Status(t.Context())
	check(t, err)
	if s.Accepts.Problem != "" {
		t.Errorf("accepts: %+v", s.Accepts)
	}
	var got strings.Builder
	for _, d := range s.ForeignDrops {
		got.WriteString(d.What + " " + d.Why)
	}
	if !strings.HasPrefix(got.String(), want) || (want == "") != (got.Len() == 0) {
		t.Errorf("foreign drops %q, want %q", got.String(), want)
	}
	if n := testutil.ToFloat64(h.metrics.foreignDrops); n == 0 != (want == "") {
		t.Errorf("foreign drops gauge %v", n)
	}
}
