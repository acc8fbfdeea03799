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
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addrState is every address of the namespace but 127.0.0.1 and the kernel's
// link-local ones, one a line, links named.
func (ns *namespace) addrState(t *testing.T) string {
	t.Helper()
	k, err := openKernel(ns.fd)
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
		l, err := ns.nl.LinkByIndex(a.link)
		check(t, err)
		fmt.Fprintf(&b, "%s (alias %q, up %t): %s scope %d flags %#x valid %d mark %#x\n",
			l.Attrs().Name, l.Attrs().Alias, isUp(l), a.prefix, a.scope, a.flags, a.valid, uint32(a.mark))
	}
	return b.String()
}

func (h *Host) ensureBoth(ctx context.Context) error {
	return errors.Join(h.EnsureAddresses(ctx), h.EnsureRules(ctx))
}

func (h *Host) removeBoth(ctx context.Context) error {
	return errors.Join(h.RemoveRules(ctx), h.RemoveAddresses(ctx))
}

// ruleState is the rules of our table as the kernel tells them, undecoded.
func (h *Host) ruleState(t *testing.T) string {
	t.Helper()
	rules, err := h.dumpRules(tableName)
	check(t, err)
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "%s: %q %q\n", r.chain, r.exprs, r.userData)
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
		must(t, h.EnsureAddresses)
		once := ns.addrState(t)
		golden(t, "addrs."+m.name, once)
		must(t, h.EnsureAddresses)
		if twice := ns.addrState(t); twice != once {
			t.Errorf("second EnsureAddresses changed\n%s\nto\n%s", once, twice)
		}
	})
}

// Whatever is left behind, one start makes of it what a start on a clean host
// makes.
func TestConvergesFromLeftovers(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		h := newHost(t, ns.config(m, "g1"))
		must(t, h.ensureBoth)
		clean, rules := ns.addrState(t), h.ruleState(t)
		must(t, h.removeBoth)
		for _, tt := range leftovers {
			t.Run(tt.name, func(t *testing.T) {
				if tt.link && m.name == "lo" {
					t.Skip("lo is not created")
				}
				tt.leave(t, ns, m)
				h := newHost(t, ns.config(m, "g1"))
				must(t, h.ensureBoth)
				if got := ns.addrState(t); got != clean {
					t.Errorf("got:\n%s\nwant:\n%s", got, clean)
				}
				if got := h.ruleState(t); got != rules {
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
		check(t, ns.nl.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: m.linkType}))
	}
	l, err := ns.nl.LinkByName(name)
	check(t, err)
	return l
}

// put puts an address on a link as only the kernel interface can.
func (ns *namespace) put(t *testing.T, l netlink.Link, a ifAddr) {
	t.Helper()
	k, err := openKernel(ns.fd)
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
	link  bool // about the link, so not for lo
	leave func(t *testing.T, ns *namespace, m mode)
}{
	{"half a link", true, func(t *testing.T, ns *namespace, m mode) { ns.carrier(t, m) }},
	{"link of another generation", true, func(t *testing.T, ns *namespace, m mode) {
		check(t, ns.nl.LinkSetAlias(ns.carrier(t, m), aliasOf("g0")))
	}},
	{"node-cache's link", true, func(t *testing.T, ns *namespace, m mode) {
		check(t, ns.nl.LinkSetUp(ns.carrier(t, m)))
		ns.addTo(t, DefaultInterface, "169.254.20.10/32", "10.96.0.10/32")
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
				a.mark = markOf("g0")
			}
			ns.put(t, l, a)
		}
	}},
	{"another carrier's addresses", true, func(t *testing.T, ns *namespace, m mode) {
		lo, err := ns.nl.LinkByName("lo")
		check(t, err)
		ns.put(t, lo, ifAddr{prefix: netip.MustParsePrefix("169.254.20.10/32"), mark: markOf("g0")})
	}},
	{"empty table", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(*nftables.Conn, *nftables.Table) {})
	}},
	{"older table", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g0")
			cfg.Addrs, cfg.DNSPort = services, 5300
			chains := cfg.baseChains(true)
			chains[len(chains)-1].name = "renamed"
			addChains(c, table, chains)
		})
	}},
	{"our table for another port", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = 5300
			addChains(c, table, cfg.baseChains(true))
		})
	}},
	{"our table with another socket property", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = DefaultDNSPort
			chains := cfg.baseChains(true)
			i := slices.IndexFunc(chains, func(c chain) bool { return c.name == chainIfListening })
			chains[i].rules[0].exprs[0] = &expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}
			addChains(c, table, chains)
		})
	}},
	{"our table and a foreign chain in it", false, func(t *testing.T, ns *namespace, m mode) {
		ns.leaveTable(t, func(c *nftables.Conn, table *nftables.Table) {
			cfg := ns.config(m, "g1")
			cfg.DNSPort = DefaultDNSPort
			addChains(c, table, append(cfg.baseChains(true), chain{name: "foreign"}))
		})
	}},
}

func (ns *namespace) leaveTable(t *testing.T, fill func(*nftables.Conn, *nftables.Table)) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.fd))
	check(t, err)
	fill(conn, conn.AddTable(inetTable(tableName)))
	check(t, conn.Flush())
}

// What a process of ours called otherwise is in the way only while it runs.
func TestLinkOfAnotherName(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		if m.name == "lo" {
			t.Skip("lo has one name")
		}
		before := ns.addrState(t)
		cfg := ns.config(m, "g1")
		cfg.Interface = "dns0"
		older, newer := newHost(t, cfg), newHost(t, ns.config(m, "g2"))
		must(t, older.EnsureAddresses)
		if err := newer.EnsureAddresses(t.Context()); !errors.Is(err, ErrAddressElsewhere) {
			t.Errorf("beside a process that runs: %v", err)
		}
		check(t, newer.RemoveAddresses(t.Context()))
		check(t, older.Close()) // the kernel does as much for a killed process
		must(t, newer.EnsureAddresses)
		wantAddrs(t, newer)
		must(t, newer.RemoveAddresses)
		if after := ns.addrState(t); after != before {
			t.Errorf("left:\n%s", after)
		}
		must(t, newHost(t, cfg).EnsureAddresses)
		check(t, Teardown(t.Context(), Config{NetNS: ns.fd, linkType: m.linkType}))
		if after := ns.addrState(t); after != before {
			t.Errorf("after teardown under the usual name:\n%s", after)
		}
	})
}

// wantAddrs checks that all local IPs are on the link that the Host wants.
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

// Rules whose process was killed go when a process starts that wants none;
// those of one that runs stay.
func TestOrphanedRulesGo(t *testing.T) {
	ns := newNamespace(t)
	firewalls[0].setUp(t, ns)
	before := ns.firewallState(t)
	older, newer := newHost(t, ns.config(modes[1], "g1")), newHost(t, ns.config(modes[1], "g2"))
	must(t, older.EnsureRules)
	must(t, older.EnsureAccepts)
	running := ns.firewallState(t)
	must(t, newer.RemoveOrphanedRules)
	if got := ns.firewallState(t); got != running {
		t.Errorf("beside a process that runs:\n%s\nwant\n%s", got, running)
	}
	check(t, older.Close())
	must(t, newer.RemoveOrphanedRules)
	if after := ns.firewallState(t); after != before {
		t.Errorf("left:\n%s\nwant\n%s", after, before)
	}
}

// After a crash of whatever generation, teardown restores the namespace byte
// for byte and touches nothing foreign.
func TestTeardown(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		ns.addTo(t, "lo", "192.0.2.7/32")
		ns.serviceProxy(t) // someone else's table
		before := ns.snapshot(t)
		cfg := ns.config(m, "g1")
		cfg.Addrs = append(slices.Clone(services), bothFamilies...)
		h, err := New(cfg)
		check(t, err)
		must(t, h.ensureBoth)
		if ns.snapshot(t) == before {
			t.Fatal("nothing was set up")
		}
		err = Teardown(t.Context(), Config{NetNS: ns.fd, linkType: m.linkType})
		if !errors.Is(err, ErrStillRunning) {
			t.Errorf("teardown under a running process: %v", err)
		}
		must(t, h.ensureBoth)
		check(t, h.Close()) // the kernel does as much for a killed process
		for range 2 {
			check(t, Teardown(t.Context(), Config{NetNS: ns.fd, linkType: m.linkType}))
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
			t.Errorf("the older one's removal changed\n%s\nto\n%s", addrs, got)
		}
		wantOK(t, newer)
		s, err := newer.Status(t.Context())
		check(t, err)
		if want := []string{"nodens-g2"}; !slices.Equal(s.Rules.Live, want) || s.Rules.Generation != "g2" {
			t.Errorf("rules: %+v, want generation g2 and %v", s.Rules, want)
		}
		must(t, newer.removeBoth)
		if got := ns.addrState(t); got != "" {
			t.Errorf("left: %s", got)
		}
	})
}

// A superseded process repairs nothing, until the other one is gone.
func TestSupersededStandsDown(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg := ns.config(m, "g2")
		cfg.Addrs = bothFamilies[:1] // differs, so that a repair would show
		older, newer := newHost(t, ns.config(m, "g1")), newHost(t, cfg)
		must(t, older.ensureBoth)
		must(t, newer.ensureBoth)
		addrs := ns.addrState(t)
		if older.repair(true, true) {
			t.Error("repair failed")
		}
		if got := ns.addrState(t); got != addrs {
			t.Errorf("the superseded process changed\n%s\nto\n%s", addrs, got)
		}
		wantOK(t, newer)
		must(t, newer.removeBoth)
		if older.repair(true, true) {
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
		check(t, ns.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
		for _, m := range modes {
			refused(t, ns, m, ErrForeignLink, "link nodelocaldns: type veth, want "+m.linkType)
		}
		check(t, Teardown(t.Context(), ns.config(modes[0], "")))
		if _, err := ns.nl.LinkByName(DefaultInterface); err != nil {
			t.Error("teardown removed a foreign link")
		}
	})
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth7"
		check(t, ns.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
		ns.addTo(t, "eth7", "169.254.20.10/24")
		refused(t, ns, m, ErrAddressElsewhere, "local IP 169.254.20.10: already on link eth7")
	})
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		for _, conf := range []string{"default", "lo"} { // default: of the link to come
			ns.inside(t, func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
			})
		}
		refused(t, ns, m, nil, "IPv6 is disabled there")
		if !ns.hasAddr(t, bothFamilies[0]) {
			t.Error("the IPv4 address is missing too")
		}
	})
}

func refused(t *testing.T, ns *namespace, m mode, is error, text string) {
	t.Helper()
	h := newHost(t, ns.config(m, "g1"))
	err := h.EnsureAddresses(t.Context())
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
		t.Errorf("EnsureAddresses: %v, want %q", err, text)
	}
}

// An address that the administrator put on lo is used, never changed, never
// removed; on a dummy link it would be a second one.
func TestAdministratorsAddressOnLo(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		ns.addTo(t, "lo", "169.254.20.10/16", "fd00:53::10/128")
		before := ns.snapshot(t)
		h := newHost(t, ns.config(m, "g1"))
		err := h.EnsureAddresses(t.Context())
		if m.name == "lo" {
			check(t, err)
			wantNoAddressProblem(t, h)
		} else if !errors.Is(err, ErrAddressElsewhere) {
			t.Errorf("EnsureAddresses: %v, want %v", err, ErrAddressElsewhere)
		}
		must(t, h.RemoveAddresses)
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

// repairs is a log handler that reports what Watch repaired.
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

// restored waits until Watch has repaired everything.
func (r repairs) restored(t *testing.T, h *Host) {
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

// drifts are what others do to our state under Watch.
var drifts = []struct {
	name string
	link bool // about the link, so not for lo
	do   func(ns *namespace, carrier netlink.Link) error
}{
	{"link deleted", true, func(ns *namespace, l netlink.Link) error { return ns.nl.LinkDel(l) }},
	{"link down", true, func(ns *namespace, l netlink.Link) error { return ns.nl.LinkSetDown(l) }},
	{"IPv4 address deleted", false, func(ns *namespace, l netlink.Link) error { return ns.delAddr(l, "169.254.20.10/32") }},
	{"IPv6 address deleted", false, func(ns *namespace, l netlink.Link) error { return ns.delAddr(l, "fd00:53::10/128") }},
	{"table deleted", false, func(ns *namespace, l netlink.Link) error {
		return ns.change(func(c *nftables.Conn) error { c.DelTable(inetTable(tableName)); return nil })
	}},
	{"table dormant", false, func(ns *namespace, l netlink.Link) error {
		msg, err := tableMessage(unix.NFT_MSG_NEWTABLE, 0,
			mdlayher.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(tableName + "\x00")},
			mdlayher.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: []byte{0, 0, 0, nftTableFDormant}})
		if err != nil {
			return err
		}
		c, err := mdlayher.Dial(unix.NETLINK_NETFILTER, &mdlayher.Config{NetNS: ns.fd})
		if err != nil {
			return err
		}
		return errors.Join(commit(c, msg), c.Close())
	}},
	{"ruleset flushed", false, func(ns *namespace, l netlink.Link) error {
		return ns.change(func(c *nftables.Conn) error { c.FlushRuleset(); return nil })
	}},
	{"rule deleted", false, func(ns *namespace, l netlink.Link) error {
		return ns.change(func(c *nftables.Conn) error {
			t := inetTable(tableName)
			rules, err := c.GetRules(t, &nftables.Chain{Name: chainPrerouting, Table: t})
			if err != nil {
				return err
			}
			return c.DelRule(rules[0])
		})
	}},
	{"rule added", false, func(ns *namespace, l netlink.Link) error {
		return ns.change(func(c *nftables.Conn) error {
			t := inetTable(tableName)
			c.AddRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chainOutput, Table: t}, Exprs: verdict(-1, "")[:0]})
			return nil
		})
	}},
}

func (ns *namespace) delAddr(l netlink.Link, prefix string) error {
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return ns.nl.AddrDel(l, a)
}

func (ns *namespace) change(f func(*nftables.Conn) error) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns.fd))
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Flush())
}

func (ns *namespace) existingCarrier(t *testing.T, m mode) netlink.Link {
	t.Helper()
	name := DefaultInterface
	if m.name == "lo" {
		name = "lo"
	}
	l, err := ns.nl.LinkByName(name)
	check(t, err)
	return l
}

func TestWatchRestores(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg := ns.config(m, "g1")
		reported, registry := make(repairs, 100), prometheus.NewPedanticRegistry()
		cfg.Logger, cfg.Registerer = slog.New(reported), registry
		cfg.SyncInterval = time.Hour // so that only notifications can cause a repair
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
			reported.restored(t, h)
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

// What was removed on purpose is not drift.
func TestWatchLeavesRemoved(t *testing.T) {
	ns := newNamespace(t)
	h := newHost(t, ns.config(modes[1], "g1"))
	must(t, h.ensureBoth)
	must(t, h.removeBoth)
	if h.repair(true, true) {
		t.Error("repair failed")
	}
	if got := ns.addrState(t); got != "" {
		t.Errorf("restored: %s", got)
	}
	if info, err := h.readTable(tableName); err != nil || info.handle != nil {
		t.Errorf("table: %+v, %v", info, err)
	}
}

// A repair that fails is told, counted and tried again.
func TestWatchReportsFailure(t *testing.T) {
	ns := newNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth7"
	check(t, ns.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	cfg := ns.config(modes[1], "g1")
	failures := make(chan error, 100)
	cfg.OnError = func(object string, err error) { failures <- fmt.Errorf("%s: %w", object, err) }
	reported := make(repairs, 100)
	cfg.Logger = slog.New(reported)
	h := newHost(t, cfg)
	must(t, h.EnsureRules)
	must(t, h.EnsureAddresses)
	eth7 := ns.addTo(t, "eth7", "169.254.20.10/32")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Watch(ctx) }()
	if err := <-failures; !errors.Is(err, ErrAddressElsewhere) || !strings.HasPrefix(err.Error(), objectAddresses) {
		t.Errorf("failure: %v", err)
	}
	lo, err := ns.nl.LinkByName("lo")
	check(t, err)
	check(t, ns.delAddr(eth7, "169.254.20.10/32"))
	check(t, ns.delAddr(lo, "169.254.20.10/32"))
	reported.restored(t, h)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if testutil.ToFloat64(h.metrics.errors.WithLabelValues(objectAddresses)) == 0 {
		t.Error("no error was counted")
	}
}

// A failed repair of one thing is tried again though another was well since.
func TestWatchKeepsRetrying(t *testing.T) {
	ns := newNamespace(t)
	disableIPv6 := func(value string) {
		ns.inside(t, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte(value), 0)
		})
	}
	cfg := ns.config(modes[1], "g1")
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
	disableIPv6("1") // the kernel takes the address away
	if object := <-failures; object != objectAddresses {
		t.Errorf("failure of %s", object)
	}
	ns.command(t, "nft", "delete table inet nodens")
	for want := "network setup had drifted, repaired: " + objectRules; want != ""; {
		select {
		case got := <-reported:
			if got == want {
				want = ""
			}
		case <-time.After(30 * time.Second):
			t.Fatal("rules were not repaired")
		}
	}
	disableIPv6("0") // which notifies nobody
	reported.restored(t, h)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
}

func TestStatusTells(t *testing.T) {
	ns := newNamespace(t)
	cfg := ns.config(modes[1], "g1")
	h := newHost(t, cfg)
	s, err := h.Status(t.Context())
	check(t, err)
	if s.OK() || s.Rules.Problem != "missing" || s.Addresses[0].Problem != "missing" {
		t.Errorf("status of nothing: %+v", s)
	}
	must(t, h.ensureBoth)
	drop := nftables.ChainPolicyDrop
	check(t, ns.change(func(c *nftables.Conn) error {
		c.AddChain(&nftables.Chain{
			Name: "INPUT", Table: c.AddTable(inetTable("firewall")), Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
		})
		return nil
	}))
	other := newHost(t, ns.config(modes[1], ""))
	s, err = other.Status(t.Context())
	check(t, err)
	want := "address 169.254.20.10: on lo\naddress fd00:53::10: on lo\nrules: table inet nodens\naccepts: %s\n"
	for _, accepts := range []string{"missing or wrong in chain inet firewall INPUT", "in inet firewall INPUT"} {
		if want := fmt.Sprintf(want, accepts); s.String() != want || s.OK() != (s.Accepts.Problem == "") {
			t.Errorf("status:\n%s\nwant:\n%s", s, want)
		}
		must(t, h.EnsureAccepts)
		s, err = other.Status(t.Context())
		check(t, err)
	}
	check(t, h.Close())
	if s, err = other.Status(t.Context()); err != nil || !strings.Contains(s.Rules.Problem, "nodens-g1 is missing") {
		t.Errorf("status after death: %+v, %v", s, err)
	}
}

func TestPortHolders(t *testing.T) {
	ns := newNamespace(t)
	ns.serve(t, netip.MustParseAddrPort("[::]:53"), "wildcard")
	ns.addTo(t, "lo", "169.254.20.10/32", "192.0.2.1/32")
	ns.serve(t, netip.MustParseAddrPort("192.0.2.1:5300"), "other")
	self := Holder{PID: os.Getpid()}
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
		var got []Holder
		ns.inside(t, func() (err error) {
			got, err = PortHolders("/proc", tt.port, netip.MustParseAddr(tt.addr))
			return err
		})
		var want []Holder
		for i, local := range tt.want {
			want = append(want, Holder{[]string{"udp", "tcp"}[i], netip.MustParseAddrPort(local), self.PID, self.Comm})
		}
		if !slices.Equal(got, want) {
			t.Errorf("port %d of %s: %v, want %v", tt.port, tt.addr, got, want)
		}
	}
}
