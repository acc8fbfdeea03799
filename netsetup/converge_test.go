package netsetup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/firewall"
	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// addrState is every address of the namespace except 127.0.0.1 and the kernel's
// link-local ones, one per line.
func (ns *namespace) addrState(t *testing.T) string {
	t.Helper()
	k, err := openKernel(ns.FD())
	check(t, err)
	defer k.Close()
	have, err := k.addrs()
	check(t, err)
	have = slices.DeleteFunc(have, func(a ifAddr) bool { return a.prefix.Addr().IsLoopback() || a.scope == unix.RT_SCOPE_LINK })
	slices.SortFunc(have, func(a, b ifAddr) int {
		return cmp.Or(cmp.Compare(a.link, b.link), a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	var b strings.Builder
	for _, a := range have {
		l, err := ns.NL.LinkByIndex(a.link)
		check(t, err)
		fmt.Fprintf(&b, "%s (alias %q, up %t): %s scope %d flags %#x valid %d mark %#x\n",
			l.Attrs().Name, l.Attrs().Alias, isUp(l), a.prefix, a.scope, a.flags, a.valid, uint32(a.mark))
	}
	return b.String()
}

// ruleState is the rules of our table as the kernel reports them, not decoded.
func (ns *namespace) ruleState(t *testing.T) string {
	t.Helper()
	rules, err := nft.Client{NetNS: ns.FD()}.Rules(nft.Inet(tableName), "")
	check(t, err)
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "%s: %q %q\n", r.Chain, r.Exprs, r.UserData)
	}
	return b.String()
}

func wantOK(t *testing.T, h *Host) {
	t.Helper()
	s, err := h.Status(t.Context())
	check(t, err)
	if !s.OK() {
		t.Errorf("status: %+v", s)
	}
}

func TestEnsureAddresses(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		h := newHost(t, ns.config(m, "g1"))
		must(t, h.Addresses.Ensure)
		once := ns.addrState(t)
		nstest.Golden(t, "addrs."+m.name, once)
		must(t, h.Addresses.Ensure)
		if twice := ns.addrState(t); twice != once {
			t.Errorf("second Ensure changed\n%s\nto\n%s", once, twice)
		}
		if m.name == "lo" {
			return
		}
		linkLocal := netip.MustParsePrefix("fe80::1/64") // the kernel adds one if sysctl addr_gen_mode says so
		ns.put(t, ns.existingCarrier(t, m), ifAddr{prefix: linkLocal, scope: unix.RT_SCOPE_LINK})
		must(t, h.Addresses.Ensure)
		if !ns.HasAddr(t, linkLocal.Addr()) {
			t.Error("Ensure deleted a link-local address")
		}
	})
}

// A start after any leftovers has the same result as on a clean host.
func TestConvergesFromLeftovers(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		h := newHost(t, ns.config(m, "g1"))
		must(t, h.ensureBoth)
		clean, rules := ns.addrState(t), ns.ruleState(t)
		must(t, h.removeBoth)
		for _, tt := range leftovers {
			t.Run(tt.name, func(t *testing.T) {
				if tt.link && m.name == "lo" {
					t.Skip("nodens does not create lo")
				}
				tt.leave(t, ns, m)
				h := newHost(t, ns.config(m, "g1"))
				must(t, h.ensureBoth)
				if got := ns.addrState(t); got != clean {
					t.Errorf("got:\n%s\nwant:\n%s", got, clean)
				}
				if got := ns.ruleState(t); got != rules {
					t.Errorf("got rules:\n%s\nwant:\n%s", got, rules)
				}
				wantOK(t, h)
				must(t, h.removeBoth)
			})
		}
	})
}

// carrier creates the link, unless it is lo, and returns it.
func (ns *namespace) carrier(t *testing.T, m mode) netlink.Link {
	t.Helper()
	name := "lo"
	if m.name != "lo" {
		name = DefaultInterface
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		check(t, ns.NL.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: m.linkType}))
	}
	l, err := ns.NL.LinkByName(name)
	check(t, err)
	return l
}

// put puts an address on a link by rtnetlink.
func (ns *namespace) put(t *testing.T, l netlink.Link, a ifAddr) {
	t.Helper()
	k, err := openKernel(ns.FD())
	check(t, err)
	defer k.Close()
	a.link = l.Attrs().Index
	if a.prefix.Addr().Is6() {
		a.flags |= unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	check(t, k.putAddr(a))
}

var leftovers = []struct {
	name  string
	link  bool // changes the link itself, so not for lo
	leave func(t *testing.T, ns *namespace, m mode)
}{
	{"half a link", true, func(t *testing.T, ns *namespace, m mode) { ns.carrier(t, m) }},
	{"link of another generation", true, func(t *testing.T, ns *namespace, m mode) {
		check(t, ns.NL.LinkSetAlias(ns.carrier(t, m), owner.Comment("g0")))
	}},
	{"node-cache's link", true, func(t *testing.T, ns *namespace, m mode) {
		check(t, ns.NL.LinkSetUp(ns.carrier(t, m)))
		ns.AddAddr(t, DefaultInterface, "169.254.20.10/32", "10.96.0.10/32")
	}},
	{"wrong prefix length and scope", true, func(t *testing.T, ns *namespace, m mode) {
		l := ns.carrier(t, m)
		ns.put(t, l, ifAddr{prefix: netip.MustParsePrefix("169.254.20.10/16")})
		ns.put(t, l, ifAddr{prefix: netip.MustParsePrefix("169.254.20.10/32"), scope: unix.RT_SCOPE_HOST})
		ns.put(t, l, ifAddr{prefix: netip.MustParsePrefix("fd00:53::10/64")})
	}},
	{"addresses of another generation", false, func(t *testing.T, ns *namespace, m mode) {
		l := ns.carrier(t, m)
		for _, p := range []string{"169.254.20.10/32", "fd00:53::10/128", "169.254.20.11/32", "fd00:53::11/128"} {
			a := ifAddr{prefix: netip.MustParsePrefix(p)}
			if m.name == "lo" {
				a.mark = owner.MarkOf("g0")
			}
			ns.put(t, l, a)
		}
	}},
	{"another carrier's addresses", true, func(t *testing.T, ns *namespace, m mode) {
		lo, err := ns.NL.LinkByName("lo")
		check(t, err)
		ns.put(t, lo, ifAddr{prefix: netip.MustParsePrefix("169.254.20.10/32"), mark: owner.MarkOf("g0")})
	}},
	{"empty table", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(*nftables.Conn, *nftables.Table) {})
	}},
	{"older table", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g0")
			cfg.Addrs, cfg.DNSPort = nstest.Services, 5300
			chains := cfg.ruleset().base()
			chains[len(chains)-1].name = "renamed"
			addChains(c, table, chains)
		})
	}},
	{"our table for another port", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = 5300
			addChains(c, table, cfg.ruleset().base())
		})
	}},
	{"our table with another socket property", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = DefaultDNSPort
			chains := cfg.ruleset().base()
			i := slices.IndexFunc(chains, func(c chain) bool { return c.name == chainIfListening })
			chains[i].rules[0].Exprs[0] = &expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}
			addChains(c, table, chains)
		})
	}},
	{"our table and another chain in it", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = DefaultDNSPort
			addChains(c, table, append(cfg.ruleset().base(), chain{name: "other"}))
		})
	}},
}

func (ns *namespace) leaveTable(t *testing.T, fill func(*nftables.Conn, *nftables.Table)) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	check(t, err)
	fill(conn, conn.AddTable(inetTable(tableName)))
	check(t, conn.Flush())
}

// A link of nodens under another name blocks only while its process runs.
func TestLinkOfAnotherName(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		if m.name == "lo" {
			t.Skip("lo has one name")
		}
		before := ns.addrState(t)
		cfg := ns.config(m, "g1")
		cfg.Interface = "dns0"
		older, newer := newHost(t, cfg), newHost(t, ns.config(m, "g2"))
		must(t, older.Addresses.Ensure)
		if err := newer.Addresses.Ensure(t.Context()); !errors.Is(err, ErrAddressElsewhere) {
			t.Errorf("beside a running process: %v", err)
		}
		check(t, newer.Addresses.Remove(t.Context()))
		check(t, older.Close()) // the kernel does the same for a killed process
		must(t, newer.Addresses.Ensure)
		wantAddrs(t, newer)
		must(t, newer.Addresses.Remove)
		if after := ns.addrState(t); after != before {
			t.Errorf("left:\n%s", after)
		}
		must(t, newHost(t, cfg).Addresses.Ensure)
		check(t, Teardown(t.Context(), Config{NetNS: ns.FD(), linkType: m.linkType}))
		if after := ns.addrState(t); after != before {
			t.Errorf("after teardown under the usual name:\n%s", after)
		}
	})
}

// wantAddrs checks that all local IPs are on the configured link.
func wantAddrs(t *testing.T, h *Host) {
	t.Helper()
	s, err := h.Status(t.Context())
	check(t, err)
	for _, a := range s.Addresses {
		if a.Problem != "" || a.Link != h.cfg.Interface {
			t.Errorf("%+v", a)
		}
	}
}

// A process that wants no rules deletes those of a killed process, not those of
// a running one.
func TestOrphanedRulesGo(t *testing.T) {
	ns := newNamespace(t)
	nstest.Firewalls[0].SetUp(t, ns.Namespace)
	before := ns.FirewallState(t)
	older, newer := newHost(t, ns.config(onLo, "g1")), newHost(t, ns.config(onLo, "g2"))
	must(t, older.Rules.Ensure)
	must(t, older.Firewall.Ensure)
	running := ns.FirewallState(t)
	must(t, newer.RemoveOrphanedRules)
	if got := ns.FirewallState(t); got != running {
		t.Errorf("beside a running process:\n%s\nwant\n%s", got, running)
	}
	check(t, older.Close())
	must(t, newer.RemoveOrphanedRules)
	if after := ns.FirewallState(t); after != before {
		t.Errorf("left:\n%s\nwant\n%s", after, before)
	}
}

// After a crash of any generation, teardown restores the namespace byte for byte. It
// changes no object of another program.
func TestTeardown(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		ns.AddAddr(t, "lo", "192.0.2.7/32")
		ns.ServiceProxy(t) // another program's table
		before := ns.snapshot(t)
		cfg := ns.config(m, "g1")
		cfg.Addrs = append(slices.Clone(nstest.Services), nstest.LocalIPs...)
		h, err := New(cfg)
		check(t, err)
		must(t, h.ensureBoth)
		if ns.snapshot(t) == before {
			t.Fatal("nothing was set up")
		}
		err = Teardown(t.Context(), Config{NetNS: ns.FD(), linkType: m.linkType})
		if !errors.Is(err, ErrStillRunning) {
			t.Errorf("teardown beside a running process: %v", err)
		}
		must(t, h.ensureBoth)
		check(t, h.Close()) // the kernel does the same for a killed process
		for range 2 {
			check(t, Teardown(t.Context(), Config{NetNS: ns.FD(), linkType: m.linkType}))
			if after := ns.snapshot(t); after != before {
				t.Errorf("after teardown:\n%s\nbefore:\n%s", after, before)
			}
		}
	})
}

// The older process ends after the newer one has started: a surge upgrade.
func TestRemoveLeavesAdopted(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older, newer := newHost(t, ns.config(m, "g1")), newHost(t, ns.config(m, "g2"))
		must(t, older.ensureBoth)
		must(t, newer.ensureBoth)
		addrs := ns.addrState(t)
		must(t, older.removeBoth)
		if got := ns.addrState(t); got != addrs {
			t.Errorf("Remove of the older process changed\n%s\nto\n%s", addrs, got)
		}
		wantOK(t, newer)
		s, err := newer.Status(t.Context())
		check(t, err)
		if want := []string{"nodens-g2"}; !slices.Equal(s.Rules.Owned, want) || s.Rules.Generation != "g2" {
			t.Errorf("rules: %+v, want generation g2 and %v", s.Rules, want)
		}
		must(t, newer.removeBoth)
		if got := ns.addrState(t); got != "" {
			t.Errorf("left: %s", got)
		}
	})
}

// A process whose setup another one has adopted repairs nothing until the other one
// has ended.
func TestSupersededDoesNotRepair(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg := ns.config(m, "g2")
		cfg.Addrs = nstest.LocalIPs[:1] // differs, so that a repair is visible
		older, newer := newHost(t, ns.config(m, "g1")), newHost(t, cfg)
		must(t, older.ensureBoth)
		must(t, newer.ensureBoth)
		addrs := ns.addrState(t)
		if repairFails(older) {
			t.Error("repair failed")
		}
		if got := ns.addrState(t); got != addrs {
			t.Errorf("the superseded process changed\n%s\nto\n%s", addrs, got)
		}
		wantOK(t, newer)
		must(t, newer.removeBoth)
		if repairFails(older) {
			t.Error("repair failed")
		}
		wantOK(t, older)
	})
}

func TestRefusals(t *testing.T) {
	t.Run("link of another type", func(t *testing.T) {
		ns := newNamespace(t)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = DefaultInterface
		check(t, ns.NL.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
		for _, m := range modes {
			refused(t, ns, m, ErrLinkInUse, "link nodelocaldns: type veth, want "+m.linkType)
		}
		check(t, Teardown(t.Context(), ns.config(modes[0], "")))
		if _, err := ns.NL.LinkByName(DefaultInterface); err != nil {
			t.Error("teardown removed another program's link")
		}
	})
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth7"
		check(t, ns.NL.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
		ns.AddAddr(t, "eth7", "169.254.20.10/24")
		refused(t, ns, m, ErrAddressElsewhere, "local IP 169.254.20.10: already on link eth7")
	})
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		for _, conf := range []string{"default", "lo"} { // default: for new links
			ns.Inside(t, func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
			})
		}
		refused(t, ns, m, nil, "IPv6 is disabled there")
		if !ns.HasAddr(t, nstest.LocalIPs[0]) {
			t.Error("the IPv4 address is missing too")
		}
	})
}

func refused(t *testing.T, ns *namespace, m mode, is error, text string) {
	t.Helper()
	h := newHost(t, ns.config(m, "g1"))
	err := h.Addresses.Ensure(t.Context())
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
		t.Errorf("Ensure: %v, want %q", err, text)
	}
}

// An address that the administrator put on lo is used, and never changed or
// removed. With a dummy link it is refused.
func TestAdministratorsAddressOnLo(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		ns.AddAddr(t, "lo", "169.254.20.10/16", "fd00:53::10/128")
		before := ns.snapshot(t)
		h := newHost(t, ns.config(m, "g1"))
		err := h.Addresses.Ensure(t.Context())
		if m.name == "lo" {
			check(t, err)
			wantNoAddressProblem(t, h)
		} else if !errors.Is(err, ErrAddressElsewhere) {
			t.Errorf("Ensure: %v, want %v", err, ErrAddressElsewhere)
		}
		must(t, h.Addresses.Remove)
		check(t, Teardown(t.Context(), ns.config(m, "")))
		if after := ns.snapshot(t); after != before {
			t.Errorf("after:\n%s\nbefore:\n%s", after, before)
		}
	})
}

func wantNoAddressProblem(t *testing.T, h *Host) {
	t.Helper()
	s, err := h.Status(t.Context())
	check(t, err)
	for _, a := range s.Addresses {
		if a.Problem != "" {
			t.Errorf("status of %s: %s", a.Address, a.Problem)
		}
	}
}

func TestLoopbackAddressesNeedNothing(t *testing.T) {
	ns := newNamespace(t)
	before := ns.snapshot(t)
	cfg := ns.config(modes[0], "g1")
	cfg.Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.53"), netip.IPv6Loopback()}
	h := newHost(t, cfg)
	must(t, h.ensureBoth)
	wantOK(t, h)
	must(t, h.removeBoth)
	check(t, Teardown(t.Context(), cfg))
	if after := ns.snapshot(t); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
}

// repairs is a log handler that sends what Watch logs about objects.
type repairs chan string

func (repairs) Enabled(context.Context, slog.Level) bool { return true }
func (r repairs) WithAttrs([]slog.Attr) slog.Handler     { return r }
func (r repairs) WithGroup(string) slog.Handler          { return r }
func (r repairs) Handle(_ context.Context, rec slog.Record) error {
	rec.Attrs(func(a slog.Attr) bool {
		if a.Key == "object" {
			r <- rec.Message + ": " + a.Value.String()
		}
		return true
	})
	return nil
}

// waitRestored waits until Watch has repaired everything.
func (r repairs) waitRestored(t *testing.T, h *Host) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case <-r:
		case <-deadline.C:
			s, err := h.Status(t.Context())
			t.Fatalf("not restored: %+v %v", s, err)
		}
		if s, err := h.Status(t.Context()); err == nil && s.OK() {
			return
		}
	}
}

// drifts are changes by other programs while Watch runs.
var drifts = []struct {
	name string
	link bool // changes the link itself, so not for lo
	do   func(ns *namespace, carrier netlink.Link) error
}{
	{"link deleted", true, func(ns *namespace, l netlink.Link) error { return ns.NL.LinkDel(l) }},
	{"link down", true, func(ns *namespace, l netlink.Link) error { return ns.NL.LinkSetDown(l) }},
	{"IPv4 address deleted", false, func(ns *namespace, l netlink.Link) error { return ns.DeleteAddr(l, "169.254.20.10/32") }},
	{"IPv6 address deleted", false, func(ns *namespace, l netlink.Link) error { return ns.DeleteAddr(l, "fd00:53::10/128") }},
	{"table deleted", false, func(ns *namespace, l netlink.Link) error {
		return ns.Nft(func(c *nftables.Conn) error { c.DelTable(inetTable(tableName)); return nil })
	}},
	{"table dormant", false, func(ns *namespace, l netlink.Link) error {
		msg, err := nft.Message(nftables.TableFamilyINet, unix.NFT_MSG_NEWTABLE, 0,
			nft.String(unix.NFTA_TABLE_NAME, tableName), nft.Uint32(unix.NFTA_TABLE_FLAGS, nft.FlagDormant))
		if err != nil {
			return err
		}
		return nft.Client{NetNS: ns.FD()}.Commit(0, msg)
	}},
	{"ruleset flushed", false, func(ns *namespace, l netlink.Link) error {
		return ns.Nft(func(c *nftables.Conn) error { c.FlushRuleset(); return nil })
	}},
	{"rule deleted", false, func(ns *namespace, l netlink.Link) error {
		return ns.Nft(func(c *nftables.Conn) error {
			t := inetTable(tableName)
			rules, err := c.GetRules(t, &nftables.Chain{Name: chainPrerouting, Table: t})
			if err != nil {
				return err
			}
			return c.DelRule(rules[0])
		})
	}},
	{"rule added", false, func(ns *namespace, l netlink.Link) error {
		return ns.Nft(func(c *nftables.Conn) error {
			t := inetTable(tableName)
			c.AddRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chainOutput, Table: t}, Exprs: nft.Verdict(-1, "")[:0]})
			return nil
		})
	}},
}

func (ns *namespace) existingCarrier(t *testing.T, m mode) netlink.Link {
	t.Helper()
	name := DefaultInterface
	if m.name == "lo" {
		name = "lo"
	}
	l, err := ns.NL.LinkByName(name)
	check(t, err)
	return l
}

func TestWatchRestores(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg := ns.config(m, "g1")
		reported, registry := make(repairs, 100), prometheus.NewPedanticRegistry()
		cfg.Logger, cfg.Registerer = slog.New(reported), registry
		cfg.SyncInterval = time.Hour // only notifications cause a repair
		h := newHost(t, cfg)
		must(t, h.ensureBoth)
		clean := ns.addrState(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Watch(ctx) }()
		for _, d := range drifts {
			if d.link && m.name == "lo" {
				continue
			}
			if err := d.do(ns, ns.existingCarrier(t, m)); err != nil {
				t.Fatalf("%s: %v", d.name, err)
			}
			reported.waitRestored(t, h)
			if got := ns.addrState(t); got != clean {
				t.Errorf("%s: restored to\n%s\nwant\n%s", d.name, got, clean)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
		if n, err := testutil.GatherAndCount(registry, "nodens_netsetup_repairs_total"); n != 3 || err != nil {
			t.Errorf("%d series of repairs, %v", n, err)
		}
		if got := testutil.ToFloat64(h.metrics.fallbackLo) == 1; got != (m.name == "lo") {
			t.Errorf("fallback gauge is %t", got)
		}
	})
}

// Watch does not restore what Remove has removed.
func TestWatchLeavesRemoved(t *testing.T) {
	ns := newNamespace(t)
	h := newHost(t, ns.config(onLo, "g1"))
	must(t, h.ensureBoth)
	must(t, h.removeBoth)
	if repairFails(h) {
		t.Error("repair failed")
	}
	if got := ns.addrState(t); got != "" {
		t.Errorf("restored: %s", got)
	}
	if info, err := h.Rules.nft.Table(nft.Inet(tableName)); err != nil || info.Handle != nil {
		t.Errorf("table: %+v, %v", info, err)
	}
}

// A failed repair is reported, counted and retried.
func TestWatchReportsFailure(t *testing.T) {
	ns := newNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth7"
	check(t, ns.NL.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	cfg := ns.config(onLo, "g1")
	failures := make(chan error, 100)
	cfg.OnError = func(object string, err error) { failures <- fmt.Errorf("%s: %w", object, err) }
	reported := make(repairs, 100)
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	must(t, h.Rules.Ensure)
	must(t, h.Addresses.Ensure)
	eth7 := ns.AddAddr(t, "eth7", "169.254.20.10/32")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	if err := <-failures; !errors.Is(err, ErrAddressElsewhere) || !strings.HasPrefix(err.Error(), owner.Addresses) {
		t.Errorf("failure: %v", err)
	}
	lo, err := ns.NL.LinkByName("lo")
	check(t, err)
	check(t, ns.DeleteAddr(eth7, "169.254.20.10/32"))
	check(t, ns.DeleteAddr(lo, "169.254.20.10/32"))
	reported.waitRestored(t, h)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if testutil.ToFloat64(h.metrics.errors.WithLabelValues(owner.Addresses)) == 0 {
		t.Error("no error was counted")
	}
}

// The repair of an address does not wait for that of the rules.
func TestWatchRepairsAddressesAlone(t *testing.T) {
	ns := newNamespace(t)
	cfg := ns.config(onLo, "g1")
	reported := make(repairs, 100)
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	must(t, h.ensureBoth)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	h.Rules.mu.Lock()
	unlock := sync.OnceFunc(h.Rules.mu.Unlock)
	t.Cleanup(unlock) // before that of newHost
	ns.Command(t, "nft", "delete table inet nodens")
	lo, err := ns.NL.LinkByName("lo")
	check(t, err)
	check(t, ns.DeleteAddr(lo, "169.254.20.10/32"))
	reported.wait(t, "network setup had drifted, repaired: "+owner.Addresses)
	unlock()
	reported.waitRestored(t, h)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

// A failed repair is retried although a later one of another object succeeded.
func TestWatchKeepsRetrying(t *testing.T) {
	ns := newNamespace(t)
	disableIPv6 := func(value string) {
		ns.Inside(t, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(value), 0)
		})
	}
	cfg := ns.config(onLo, "g1")
	cfg.SyncInterval = time.Hour
	failures := make(chan string, 100)
	cfg.OnError = func(object string, _ error) { failures <- object }
	reported := make(repairs, 100)
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	must(t, h.ensureBoth)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	disableIPv6("1") // the kernel removes the address
	if object := <-failures; object != owner.Addresses {
		t.Errorf("failure of %s", object)
	}
	ns.Command(t, "nft", "delete table inet nodens")
	for want := "network setup had drifted, repaired: " + owner.Rules; want != ""; {
		select {
		case got := <-reported:
			if got == want {
				want = ""
			}
		case <-time.After(30 * time.Second):
			t.Fatal("rules were not repaired")
		}
	}
	disableIPv6("0") // without a notification
	reported.waitRestored(t, h)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

func TestStatus(t *testing.T) {
	ns := newNamespace(t)
	cfg := ns.config(onLo, "g1")
	h := newHost(t, cfg)
	s, err := h.Status(t.Context())
	check(t, err)
	if s.OK() || s.Rules.Problem != "missing" || s.Addresses[0].Problem != "missing" {
		t.Errorf("status before setup: %+v", s)
	}
	must(t, h.ensureBoth)
	drop := nftables.ChainPolicyDrop
	check(t, ns.Nft(func(c *nftables.Conn) error {
		c.AddChain(&nftables.Chain{
			Name: "INPUT", Table: c.AddTable(inetTable("firewall")), Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
		})
		return nil
	}))
	other := newHost(t, ns.config(onLo, ""))
	s, err = other.Status(t.Context())
	check(t, err)
	chain := []string{"inet firewall INPUT"}
	for _, want := range []firewall.Status{{Lacking: chain, Problem: "missing or wrong in chain " + chain[0]}, {Chains: chain}} {
		for _, a := range s.Addresses {
			if a.Link != "lo" || a.Problem != "" {
				t.Errorf("address: %+v", a)
			}
		}
		if fmt.Sprint(s.Firewall) != fmt.Sprint(want) || s.OK() != (want.Problem == "") || s.Rules.Problem != "" || s.Interface != "lo" {
			t.Errorf("status: %+v, want %+v", s, want)
		}
		must(t, h.Firewall.Ensure)
		s, err = other.Status(t.Context())
		check(t, err)
	}
	check(t, h.Close())
	if s, err = other.Status(t.Context()); err != nil || !strings.Contains(s.Rules.Problem, "nodens-g1 is missing") {
		t.Errorf("status after death: %+v, %v", s, err)
	}
}

func TestPortOwners(t *testing.T) {
	ns := newNamespace(t)
	ns.Serve(t, netip.MustParseAddrPort("[::]:53"), "wildcard")
	ns.AddAddr(t, "lo", "169.254.20.10/32", "192.0.2.1/32")
	ns.Serve(t, netip.MustParseAddrPort("192.0.2.1:5300"), "other")
	self := PortOwner{PID: os.Getpid()}
	comm, err := os.ReadFile("/proc/self/comm")
	check(t, err)
	self.Comm = strings.TrimSpace(string(comm))
	for _, tt := range []struct {
		port uint16
		addr string
		want []string // local addresses
	}{
		{53, "169.254.20.10", []string{"[::]:53", "[::]:53"}},
		{5300, "169.254.20.10", nil},
		{5300, "192.0.2.1", []string{"192.0.2.1:5300", "192.0.2.1:5300"}},
		{54, "192.0.2.1", nil},
	} {
		var got []PortOwner
		ns.Inside(t, func() (err error) {
			got, err = PortOwners("/proc", tt.port, netip.MustParseAddr(tt.addr))
			return err
		})
		var want []PortOwner
		for i, local := range tt.want {
			want = append(want, PortOwner{[]string{"udp", "tcp"}[i], netip.MustParseAddrPort(local), self.PID, self.Comm})
		}
		if !slices.Equal(got, want) {
			t.Errorf("port %d of %s: %v, want %v", tt.port, tt.addr, got, want)
		}
	}
}
