package netsetup

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
)

var check = nstest.Check

// namespace is a fresh network namespace with lo up.
type namespace struct{ *nstest.Namespace }

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	return &namespace{nstest.New(t)}
}

// mode is a link that carries the local IPs.
type mode struct {
	name     string
	linkType string
}

// modes are all carriers: dummy, the fallback to lo, and ifb in place of dummy if
// the kernel lacks that driver.
var (
	onLo  = mode{"lo", "no-such-driver"}
	modes = []mode{{"dummy", "dummy"}, onLo, {"ifb", "ifb"}}
)

// eachMode runs f in a fresh namespace per carrier.
func eachMode(t *testing.T, f func(t *testing.T, ns *namespace, m mode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			ns := newNamespace(t)
			if m.name != "lo" && !ns.canCreate(m.linkType) {
				t.Skip("the kernel has no driver for link type " + m.linkType)
			}
			f(t, ns, m)
		})
	}
}

func (ns *namespace) canCreate(linkType string) bool {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe"
	l := &netlink.GenericLink{LinkAttrs: attrs, LinkType: linkType}
	return ns.NL.LinkAdd(l) == nil && ns.NL.LinkDel(l) == nil
}

// config is the configuration that tests start with.
func (ns *namespace) config(m mode, generation string) Config {
	return Config{
		Addrs: nstest.LocalIPs, HealthPort: 8080, Generation: generation,
		NetNS: ns.FD(), linkType: m.linkType,
	}
}

// newHost opens a Host that is closed with the test.
func newHost(t *testing.T, cfg Config) *Host {
	t.Helper()
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func must(t *testing.T, f func(context.Context) error) {
	t.Helper()
	if err := f(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (h *Host) ensureBoth(ctx context.Context) error {
	return errors.Join(h.Addresses.Ensure(ctx), h.Rules.Ensure(ctx))
}

func (h *Host) removeBoth(ctx context.Context) error {
	return errors.Join(h.Rules.Remove(ctx), h.Addresses.Remove(ctx))
}

// repairFails is one full check of Watch.
func repairFails(h *Host) bool {
	w := newWatchers(h)
	_, addrs := w.addrs.check()
	_, rules := w.rules.check()
	return addrs || rules
}

// snapshot is everything in the namespace that setup could leave behind, as
// rtnetlink and nftables report it, and as ip and nft print it if installed.
func (ns *namespace) snapshot(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(ns.links(t) + ns.addrState(t) + ns.routes(t) + ns.tables(t))
	for _, args := range [][]string{
		{"ip", "-d", "link"},
		{"ip", "addr"},
		{"ip", "route", "show", "table", "all"},
		{"ip", "-6", "route", "show", "table", "all"},
		{"nft", "-a", "list", "ruleset"},
	} {
		if _, err := exec.LookPath(args[0]); err == nil {
			fmt.Fprintf(&b, "# %s\n%s", strings.Join(args, " "), ns.Command(t, args[0], args[1:]...))
		}
	}
	return b.String()
}

func (ns *namespace) links(t *testing.T) string {
	t.Helper()
	links, err := ns.NL.LinkList()
	check(t, err)
	var b strings.Builder
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(&b, "link %d %s %s %s %q mtu %d\n", a.Index, a.Name, l.Type(), a.Flags, a.Alias, a.MTU)
	}
	return b.String()
}

func (ns *namespace) routes(t *testing.T) string {
	t.Helper()
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := ns.NL.RouteListFiltered(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
	check(t, err)
	var b strings.Builder
	for _, r := range routes {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// tables lists tables with their handles, which change with a replacement, and
// the names of their chains.
func (ns *namespace) tables(t *testing.T) string {
	t.Helper()
	client := nft.Client{NetNS: ns.FD()}
	conn, err := client.Dial()
	check(t, err)
	chains, err := conn.ListChains()
	check(t, err)
	var b strings.Builder
	for _, c := range chains {
		info, err := client.Table(nft.Inet(c.Table.Name))
		check(t, err)
		rules, err := client.Rules(nft.Inet(c.Table.Name), "")
		check(t, err)
		fmt.Fprintf(&b, "table %s %x chain %s, rules %d\n", c.Table.Name, info.Handle, c.Name, len(rules))
	}
	return b.String()
}
