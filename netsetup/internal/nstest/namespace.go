// Package nstest has the test helpers of netsetup and its packages: namespaces, a
// node with a pod, and host firewalls.
package nstest

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Namespace is a fresh network namespace with lo up.
type Namespace struct {
	*lab.Netns
	NL *netlink.Handle
}

// New makes a namespace that lives until the end of the test.
func New(t *testing.T) *Namespace {
	t.Helper()
	ns := &Namespace{Netns: lab.NewNetns(t, t.Name())}
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE) // other families need modules
	Check(t, err)
	t.Cleanup(nl.Close)
	ns.NL = nl
	return ns
}

// FD is the file descriptor of the namespace, valid until the end of the test.
func (ns *Namespace) FD() int { return int(ns.File().Fd()) }

// Check ends the test if err is not nil.
func Check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Command runs a program in the namespace and returns its output. It skips the
// test if the program is not installed.
func (ns *Namespace) Command(t *testing.T, name string, args ...string) string {
	t.Helper()
	lab.NeedTools(t, name)
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Nft changes tables by package nftables.
func (ns *Namespace) Nft(f func(*nftables.Conn) error) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		return err
	}
	if err := f(c); err != nil {
		return err
	}
	return c.Flush()
}

// AddAddr brings a link up with addresses and returns it.
func (ns *Namespace) AddAddr(t *testing.T, link string, prefixes ...string) netlink.Link {
	t.Helper()
	ns.SetLink(t, link, true)
	ns.AddAddrs(t, link, prefixes...)
	l, err := ns.NL.LinkByName(link)
	Check(t, err)
	return l
}

// DeleteAddr removes an address from a link.
func (ns *Namespace) DeleteAddr(l netlink.Link, prefix string) error {
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return ns.NL.AddrDel(l, a)
}

// HasAddr reports whether any link has the address.
func (ns *Namespace) HasAddr(t *testing.T, ip netip.Addr) bool {
	t.Helper()
	addrs, err := ns.NL.AddrList(nil, netlink.FAMILY_ALL)
	Check(t, err)
	for _, a := range addrs {
		if a.IP.Equal(ip.AsSlice()) {
			return true
		}
	}
	return false
}

// Golden compares got with a file of testdata; UPDATE_GOLDEN=1 rewrites it.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		Check(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	Check(t, err)
	if got != string(want) {
		t.Errorf("%s differs\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
