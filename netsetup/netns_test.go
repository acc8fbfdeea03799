package netsetup

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	testlab "github.com/nodens-dns/nodens/internal/lab"
)

// skip skips the test, or fails it where CI must run everything it can.
func skip(t *testing.T, reason string) {
	t.Helper()
	testlab.Skip(t, reason)
}

// namespace is a fresh network namespace with lo up.
type namespace struct {
	fd   int // valid until the test ends
	nl   *netlink.Handle
	path string
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	fd := int(testlab.NewNetns(t, "node").File().Fd())
	k, err := openKernel(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return &namespace{fd: fd, nl: k.links, path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)}
}

// inside runs f on a thread in the namespace.
func (ns *namespace) inside(t *testing.T, f func() error) {
	t.Helper()
	if err := inNetNS(ns.fd, f); err != nil {
		t.Fatal(err)
	}
}

// command runs a program in the namespace and returns its output. It skips the
// test where the program is not installed.
func (ns *namespace) command(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		skip(t, name+" is not installed")
	}
	var out []byte
	ns.inside(t, func() error {
		out, err = exec.Command(path, args...).CombinedOutput()
		return nil
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mode is one way to carry the local IPs.
type mode struct {
	name     string
	linkType string
}

// modes are every carrier: the real one, lo where the kernel has no dummy
// driver, and ifb, which stands in for dummy where that is missing.
var modes = []mode{{"dummy", "dummy"}, {"lo", "no-such-driver"}, {"ifb", "ifb"}}

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
	return ns.nl.LinkAdd(l) == nil && ns.nl.LinkDel(l) == nil
}

var bothFamilies = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:53::10")}

// config is what the tests start from.
func (ns *namespace) config(m mode, generation string) Config {
	return Config{
		Addrs: bothFamilies, HealthPort: 8080, Generation: generation,
		NetNS: ns.fd, linkType: m.linkType,
	}
}

// host opens a Host that is closed with the test.
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

// snapshot is everything of the namespace that setup could leave behind, as
// rtnetlink and nftables tell it, and in ip's and nft's words where these are
// installed.
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
			fmt.Fprintf(&b, "# %s\n%s", strings.Join(args, " "), ns.command(t, args[0], args[1:]...))
		}
	}
	return b.String()
}

func (ns *namespace) links(t *testing.T) string {
	t.Helper()
	links, err := ns.nl.LinkList()
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
	routes, err := ns.nl.RouteListFiltered(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
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
	h := newHost(t, Config{NetNS: ns.fd, Generation: "reader"})
	conn, err := h.nft()
	check(t, err)
	chains, err := conn.ListChains()
	check(t, err)
	var b strings.Builder
	for _, c := range chains {
		info, err := h.readTable(c.Table.Name)
		check(t, err)
		rules, err := h.dumpRules(c.Table.Name)
		check(t, err)
		fmt.Fprintf(&b, "table %s %x chain %s, rules %d\n", c.Table.Name, info.handle, c.Name, len(rules))
	}
	return b.String()
}

// golden compares got with a file of testdata; UPDATE_GOLDEN=1 rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
